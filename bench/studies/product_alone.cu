// product spike: w packed (8-row groups, 512 B blocks of 32 columns), x row-major bf16
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cstdio>
#include <cstdlib>
#include <cstdint>
#include <vector>
#include <algorithm>
#include <dlfcn.h>
typedef uint32_t u32; typedef uint64_t u64;
#define CK(x) do{auto e_=(x); if((int)e_){printf("%s:%d %d\n",__FILE__,__LINE__,(int)e_);exit(1);}}while(0)
__device__ __forceinline__ u32 sh(const void*p){return (u32)__cvta_generic_to_shared(p);}
__device__ __forceinline__ void bar_init(u64*b,int n){asm volatile("mbarrier.init.shared.b64 [%0], %1;"::"r"(sh(b)),"r"(n));}
__device__ __forceinline__ void bar_arrive(u64*b){asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"::"r"(sh(b)):"memory");}
__device__ __forceinline__ void bar_expect(u64*b,u32 n){asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"::"r"(sh(b)),"r"(n):"memory");}
__device__ __forceinline__ void bar_wait(u64*b,u32 par){u32 d;do{asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0,1,0,p;\n}":"=r"(d):"r"(sh(b)),"r"(par):"memory");}while(!d);}
__device__ __forceinline__ void tma2(u32 to,const void*map,int c0,int c1,u64*b){asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"::"r"(to),"l"(map),"r"(c0),"r"(c1),"r"(sh(b)):"memory");}
__device__ __forceinline__ void bulk(u32 to,const void*f,u32 n,u64*b){asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"::"r"(to),"l"(f),"r"(n),"r"(sh(b)):"memory");}
__device__ __forceinline__ void cpa(u32 to,const void*f){asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"::"r"(to),"l"(f):"memory");}
__device__ __forceinline__ u64 desc(u32 a,u32 gb,u64 sw){return (u64)(a>>4&0x3fff)|(u64)1<<16|(u64)(gb>>4)<<32|sw<<62;}
#define R4(b) "%" #b
template<int N> struct MM;
#define S8(c,i) "+f"(c[i]),"+f"(c[i+1]),"+f"(c[i+2]),"+f"(c[i+3]),"+f"(c[i+4]),"+f"(c[i+5]),"+f"(c[i+6]),"+f"(c[i+7])
#define S32(c,i) S8(c,i),S8(c,i+8),S8(c,i+16),S8(c,i+24)
#define N0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define N1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define N2 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define N3 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define DEF(n,names,a,b,...) template<> struct MM<n>{__device__ static __forceinline__ void go(float*c,u64 x,u64 w){asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, " a ", " b ", 1, 1, 1, 0, 0;":__VA_ARGS__:"l"(x),"l"(w));}};
DEF(128,N0 N1,"%64","%65",S32(c,0),S32(c,32))
DEF(192,N0 N1 N2,"%96","%97",S32(c,0),S32(c,32),S32(c,64))
DEF(256,N0 N1 N2 N3,"%128","%129",S32(c,0),S32(c,32),S32(c,64),S32(c,96))
struct P{const __nv_bfloat16*x,*w; __nv_bfloat16*y; const CUtensorMap*mx,*mw; int T,K,R; };
// XT: 0 cp.async as today, 1 tensor map. WT: 0 2 KB copies, 1 tensor. C: columns of a step (64,128)
template<int N,int C,int ST,int XS,int XT,int WT,int SQ,int EP>
__global__ void __launch_bounds__(384,1) prod(const P p)
{
  extern __shared__ __align__(1024) char s[];
  __shared__ u64 full[ST],empty[ST],xfull[2][XS];
  __shared__ float s_sq[2][64];
  constexpr int WB=N*C*2, XB=64*64*2;
  char*s_x=s, *s_w=s+2*XS*XB;
  const int tid=threadIdx.x,warp=tid/32;
  if(tid==0){for(int i=0;i<ST;i++){bar_init(&full[i],1);bar_init(&empty[i],8);}for(int i=0;i<2*XS;i++)bar_init(&xfull[0][i],1);asm volatile("fence.mbarrier_init.release.cluster;":::"memory");}
  __syncthreads();
  const int tt=p.T/128,nt=(p.R+N-1)/N,tiles=tt*nt,steps=p.K/C;
  if(warp==8){
    u32 at=0,ph=1;
    for(int t=blockIdx.x;t<tiles;t+=gridDim.x){
      const int n=t/tt;
      for(int k=0;k<steps;k++){
        bar_wait(&empty[at],ph);
        if(WT){ if(tid%32==0){bar_expect(&full[at],WB); tma2(sh(s_w+at*WB),p.mw,k*C*2,n*(N/8),&full[at]);} }
        else { if(tid%32==0)bar_expect(&full[at],WB); __syncwarp();
          if(tid%32<N/8) bulk(sh(s_w+at*WB+(tid%32)*C*16),(const char*)p.w+((u64)(n*(N/8)+tid%32)*(p.K/32)+k*(C/32))*512,C*16,&full[at]); __syncwarp(); }
        if(++at==ST){at=0;ph^=1;}
      }
    }
  } else if(warp<8){
    const int wg=warp/4,i=tid%128;
    char*my=s_x+wg*XS*XB;
    u32 at=0,ph=0; u32 xat=0,xph=0;
    constexpr int XC=C/64; // x stages of a step
    for(int t=blockIdx.x;t<tiles;t+=gridDim.x){
      const int n=t/tt,row=(t%tt)*128+wg*64;
      float sum[N/2]; float sq[2]={0,0};
#pragma unroll
      for(int e=0;e<N/2;e++)sum[e]=0;
      if(XT){
        // x: XS stages ahead; stage index modulo XS continues over tiles
        const int total=p.K/64;
        if(i==0) for(int q=0;q<XS-XC;q++){u32 b=(xat+q)%XS; bar_expect(&xfull[wg][b],XB); tma2(sh(my+b*XB),p.mx,q*64,row,&xfull[wg][b]);}
        u32 prev=0;
        for(int k=0;k<steps;k++){
          bar_wait(&full[at],ph);
#pragma unroll
          for(int h=0;h<XC;h++){u32 b=xat+h; bar_wait(&xfull[wg][b>=XS?b-XS:b],b>=XS?xph^1:xph);}
          __syncwarp();
          asm volatile("wgmma.fence.sync.aligned;":::"memory");
#pragma unroll
          for(int h=0;h<XC;h++){
            u32 b=xat+h; b=b>=XS?b-XS:b;
            u64 dx=desc(sh(my+b*XB),1024,1),dw=desc(sh(s_w+at*WB+h*1024),C*16,2);
#pragma unroll
            for(int kk=0;kk<4;kk++) MM<N>::go(sum,dx+kk*2,dw+(kk/2)*32+(kk%2)*2);
          }
          asm volatile("wgmma.commit_group.sync.aligned;":::"memory");
          if(SQ){
#pragma unroll
            for(int h=0;h<XC;h++){ u32 b=xat+h; b=b>=XS?b-XS:b;
#pragma unroll
            for(int m=0;m<4;m++){ const uint4 v=*(const uint4*)(my+b*XB+(i/8+16*m)*128+(i%8)*16); const u32 w4[4]={v.x,v.y,v.z,v.w};
#pragma unroll
              for(int e=0;e<4;e++){float a=__uint_as_float(w4[e]<<16),c=__uint_as_float(w4[e]&0xffff0000u); sq[m%2]=fmaf(c,c,fmaf(a,a,sq[m%2]));}}}
          }
          if(k>0||0){
            asm volatile("wgmma.wait_group.sync.aligned 1;":::"memory");
            if(tid%32==0)bar_arrive(&empty[prev]);
          }
          prev=at;
          // previous step's x buffers are free when all 4 warps passed; refill them
          asm volatile("bar.sync %0, 128;"::"r"(2+wg):"memory");
          if(i==0){
            // free buffers: those of step k-1: positions xat-XC..xat-1 ; next to ask: stage (k*XC + XS-XC + h)
#pragma unroll
            for(int h=0;h<XC;h++){int q=k*XC+XS-XC+h; if(q<total){u32 b=(xat+XS-XC+h)%XS; bar_expect(&xfull[wg][b],XB); tma2(sh(my+b*XB),p.mx,q*64,row,&xfull[wg][b]);}}
          }
          xat+=XC; if(xat>=XS){xat-=XS;xph^=1;}
          if(++at==ST){at=0;ph^=1;}
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;":::"memory");
        if(tid%32==0)bar_arrive(&empty[prev]);
        asm volatile("bar.sync %0, 128;"::"r"(2+wg):"memory");
      } else {
        // today's: 64-byte swizzle blocks by cp.async, two buffers of a step (C==128)
        const int r4=i/4,pc=i%4;
        const char*from=(const char*)(p.x+(u64)(row+r4)*p.K)+pc*16; char*to=my+r4/8*512+r4%8*64+((pc^(r4%8/2))*16);
        auto ask=[&](int st,int buf){
#pragma unroll
          for(int h=0;h<2;h++)
#pragma unroll
            for(int m=0;m<2;m++) cpa(sh(to+buf*XB+h*4096+m*2048),from+(u64)m*32*p.K*2+st*128+h*64);
          asm volatile("cp.async.commit_group;":::"memory");};
        for(int h=0;h<XC;h++)ask(h,h);
        for(int k=0;k<steps;k++){
          const int buf=k%2*XC;
          bar_wait(&full[at],ph);__syncwarp();
          asm volatile("cp.async.wait_group 0;":::"memory");
          asm volatile("fence.proxy.async.shared::cta;":::"memory");
          asm volatile("bar.sync %0, 128;"::"r"(2+wg):"memory");
          asm volatile("wgmma.fence.sync.aligned;":::"memory");
#pragma unroll
          for(int h=0;h<XC;h++){
            u64 dx=desc(sh(my+(buf+h)*XB),512,2),dw=desc(sh(s_w+at*WB+h*1024),C*16,2);
#pragma unroll
            for(int kk=0;kk<4;kk++) MM<N>::go(sum,dx+(kk/2)*256+(kk%2)*2,dw+(kk/2)*32+(kk%2)*2);
          }
          asm volatile("wgmma.commit_group.sync.aligned;":::"memory");
          if(k+1<steps) for(int h=0;h<XC;h++)ask((k+1)*XC+h,(buf^XC)+h);
          if(SQ) for(int h=0;h<XC;h++)
#pragma unroll
            for(int m=0;m<4;m++){ const uint4 v=*(const uint4*)(to+(buf+h)*XB+(m/2)*4096+m%2*2048); const u32 w4[4]={v.x,v.y,v.z,v.w};
#pragma unroll
              for(int e=0;e<4;e++){float a=__uint_as_float(w4[e]<<16),c=__uint_as_float(w4[e]&0xffff0000u); sq[m%2]=fmaf(c,c,fmaf(a,a,sq[m%2]));}}
          asm volatile("wgmma.wait_group.sync.aligned 0;":::"memory");
          if(tid%32==0)bar_arrive(&empty[at]);
          if(++at==ST){at=0;ph^=1;}
        }
        asm volatile("bar.sync %0, 128;"::"r"(2+wg):"memory");
      }
      float scale=1;
      if(SQ){ s_sq[wg][i%64]=sq[0]+sq[1]; asm volatile("bar.sync %0, 128;"::"r"(2+wg):"memory"); scale=1.f+s_sq[wg][i/2]*1e-30f; asm volatile("bar.sync %0, 128;"::"r"(2+wg):"memory"); }
      const int g=i%32/4,c=i%4,r0=row+i/32*16+g;
      if(EP)
#pragma unroll
      for(int e=0;e<N/8;e++){
        const int col=n*N+8*e+2*c;
        if(col<p.R){
        *(__nv_bfloat162*)(p.y+(u64)r0*p.R+col)=__floats2bfloat162_rn(sum[4*e]*scale,sum[4*e+1]*scale);
        *(__nv_bfloat162*)(p.y+(u64)(r0+8)*p.R+col)=__floats2bfloat162_rn(sum[4*e+2]*scale,sum[4*e+3]*scale);}
      }
      else if(sum[0]==123.456f) p.y[0]=__float2bfloat16(sum[N/2-1]+scale);
    }
  }
}
__global__ void fill(__nv_bfloat16*p,u64 n,u32 seed){for(u64 i=blockIdx.x*(u64)blockDim.x+threadIdx.x;i<n;i+=gridDim.x*(u64)blockDim.x){u64 z=i*0x9e3779b97f4a7c15ull+seed;z^=z>>31;z*=0xbf58476d1ce4e5b9ull;z^=z>>29;z*=0x94d049bb133111ebull;z^=z>>32;p[i]=__float2bfloat16(((int)(z&0xffff)-32768)/32768.f);}}
__global__ void check(P p,double*err){ // one entry a thread
  u64 z=(blockIdx.x*blockDim.x+threadIdx.x)*0x9e3779b97f4a7c15ull; z^=z>>31;z*=0xbf58476d1ce4e5b9ull;z^=z>>29;
  int t=z%p.T,r=(z>>24)%p.R; double a=0;
  for(int k=0;k<p.K;k++){ u64 blk=(u64)(r/8)*(p.K/32)+k/32; const char*w=(const char*)p.w+blk*512+r%8*64+(((k%32/8)^(r%8/2))*16)+k%8*2; a+=(double)__bfloat162float(p.x[(u64)t*p.K+k])*(double)__bfloat162float(*(const __nv_bfloat16*)w);}
  double d=a-(double)__bfloat162float(p.y[(u64)t*p.R+r]); atomicAdd(err,d*d); atomicAdd(err+1,a*a);
}
typedef CUresult(*Enc)(CUtensorMap*,CUtensorMapDataType,cuuint32_t,void*,const cuuint64_t*,const cuuint64_t*,const cuuint32_t*,const cuuint32_t*,CUtensorMapInterleave,CUtensorMapSwizzle,CUtensorMapL2promotion,CUtensorMapFloatOOBfill);
Enc enc;
static CUtensorMap mk(CUtensorMapDataType ty,void*a,u64 d0,u64 d1,u64 st,u32 b0,u32 b1,CUtensorMapSwizzle sw){CUtensorMap m;cuuint64_t d[2]={d0,d1},ss[1]={st};cuuint32_t b[2]={b0,b1},es[2]={1,1};CK(enc(&m,ty,2,a,d,ss,b,es,CU_TENSOR_MAP_INTERLEAVE_NONE,sw,CU_TENSOR_MAP_L2_PROMOTION_L2_256B,CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));return m;}
template<int N,int C,int ST,int XS,int XT,int WT,int SQ,int EP> void go(const char*name,int T,int K,int R,P p,CUtensorMap*dm)
{
  int smem=2*XS*8192+ST*N*C*2+1024;
  auto k=prod<N,C,ST,XS,XT,WT,SQ,EP>;
  CK(cudaFuncSetAttribute(k,cudaFuncAttributeMaxDynamicSharedMemorySize,smem));
  CUtensorMap h[2]={mk(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,(void*)p.x,K,T,K*2,64,64,CU_TENSOR_MAP_SWIZZLE_128B),mk(CU_TENSOR_MAP_DATA_TYPE_FLOAT64,(void*)p.w,K*2,R/8,K*16,C*2,N/8,CU_TENSOR_MAP_SWIZZLE_NONE)};
  CK(cudaMemcpy(dm,h,sizeof h,cudaMemcpyHostToDevice)); p.mx=dm;p.mw=dm+1;p.T=T;p.K=K;p.R=R;
  cudaFuncAttributes fa;CK(cudaFuncGetAttributes(&fa,k));
  CK(cudaMemset(p.y,0xff,(u64)T*R*2));
  k<<<132,384,smem>>>(p);CK(cudaDeviceSynchronize());
  double*err;CK(cudaMalloc(&err,16));CK(cudaMemset(err,0,16));check<<<16,128>>>(p,err);double e[2];CK(cudaMemcpy(e,err,16,cudaMemcpyDeviceToHost));cudaFree(err);
  cudaEvent_t a,b;cudaEventCreate(&a);cudaEventCreate(&b);std::vector<float> ms;
  for(int r=0;r<5;r++){cudaEventRecord(a);for(int q=0;q<10;q++)k<<<132,384,smem>>>(p);cudaEventRecord(b);CK(cudaEventSynchronize(b));float f;cudaEventElapsedTime(&f,a,b);ms.push_back(f/10);}
  std::sort(ms.begin(),ms.end());
  printf("%-34s T%5d K%6d R%6d %8.1f us %6.0f TFLOP/s err %.1e regs %d local %d\n",name,T,K,R,ms[2]*1e3,2.0*T*K*R/ms[2]/1e9,EP?sqrt(e[0]/e[1]):0.,fa.numRegs,(int)fa.localSizeBytes);fflush(stdout);
}
int main(){
  CK(cudaFree(0)); void*l=dlopen("libcuda.so.1",RTLD_NOW);enc=(Enc)dlsym(l,"cuTensorMapEncodeTiled");
  P p={};__nv_bfloat16*x,*w,*y;u64 nw=24576ull*4096;
  CK(cudaMalloc(&x,2048ull*12288*2));CK(cudaMalloc(&w,nw*2));CK(cudaMalloc(&y,2048ull*24576*2));CUtensorMap*dm;CK(cudaMalloc(&dm,256));
  fill<<<1000,256>>>(x,2048ull*12288,1);fill<<<1000,256>>>(w,nw,2);p.x=x;p.w=w;p.y=y;
  int sh[][3]={{512,4096,24576},{2048,4096,24576},{512,12288,4096},{2048,12288,4096},{2048,4096,6144}};
  for(auto&q:sh){int T=q[0],K=q[1],R=q[2];
    //  N  C  ST XS XT WT SQ EP
    go<192,128,3,4,0,0,1,1>("today: 192x128, 2KB, cp.async, sq",T,K,R,p,dm);
    go<192,128,3,4,0,1,1,1>("192x128 w map, cp.async, sq",T,K,R,p,dm);
    go<192,128,3,4,0,1,0,1>("192x128 w map, cp.async",T,K,R,p,dm);
    go<192,128,3,4,1,0,0,1>("192x128 2KB, x map",T,K,R,p,dm);
    go<192,128,3,4,1,1,0,1>("192x128 w map, x map",T,K,R,p,dm);
    go<192,128,3,4,1,1,1,1>("192x128 w map, x map, sq",T,K,R,p,dm);
    go<192,64,5,4,1,1,0,1>("192x64 w map, x map",T,K,R,p,dm);
    go<192,64,5,4,1,1,1,1>("192x64 w map, x map, sq",T,K,R,p,dm);
    go<192,64,5,4,1,1,0,0>("192x64 w map, x map, no end",T,K,R,p,dm);
    go<128,128,4,4,1,1,0,1>("128x128 w map, x map",T,K,R,p,dm);
    if(R%256==0) go<256,64,4,4,1,1,0,1>("256x64 w map, x map",T,K,R,p,dm);
    if(R%256==0) go<256,64,4,4,1,1,1,1>("256x64 w map, x map, sq",T,K,R,p,dm);
    if(R%256==0) go<256,64,5,3,1,1,0,1>("256x64 5/3 w map, x map",T,K,R,p,dm);
  }
}
