/* rt_lanes_model.h - the lanes of a warp, for tests of what lanes do together on any machine: 32
 * coroutines that run one after the other, in an order drawn anew after each meeting, so that what
 * a lane reads before another has written it shows.
 */
#ifndef RT_LANES_MODEL_H
#define RT_LANES_MODEL_H

enum { RT_LANES = 32, RT_STEP_MOVES = 0 };

rt_u32 lanes_current(void);
/* Wait until all lanes have come to the meeting of this kind; the set of those that said yes. */
rt_u32 lanes_meet(int kind, int says);
/* A word for them to leave something in. */
rt_u32 *lanes_word(void);

RT_FN rt_u32 rt_lane(void)
{
    return lanes_current();
}
RT_FN void rt_meet(void)
{
    lanes_meet(0, 0);
}
RT_FN int rt_every(int condition)
{
    return lanes_meet(1, condition) == 0xffffffffu;
}
RT_FN rt_u32 rt_before(int says, rt_u32 *all)
{
    rt_u32 set = lanes_meet(2, says);
    *all = (rt_u32)__builtin_popcount(set);
    return (rt_u32)__builtin_popcount(set & ((1u << lanes_current()) - 1));
}
RT_FN rt_u32 rt_first(rt_u32 value)
{
    if (lanes_current() == 0)
        *lanes_word() = value;
    lanes_meet(3, 0);
    value = *lanes_word();
    lanes_meet(4, 0); /* the first lane may leave another */
    return value;
}

#endif
