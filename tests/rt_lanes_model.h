/* rt_lanes_model.h - the lanes of a warp, for tests of what lanes do together on any machine: 32
 * coroutines that run one after the other, in an order drawn anew after each meeting, so that what
 * a lane reads before another has written it shows.  A test may let one of them do it all.
 */
#ifndef RT_LANES_MODEL_H
#define RT_LANES_MODEL_H

enum { MOST_LANES = 32, RT_STEP_MOVES = 0 };

/* Lanes that there are: 1 or MOST_LANES. */
rt_u32 lanes_there(void);
#define RT_LANES lanes_there()
rt_u32 lanes_current(void);
/* Wait until all lanes have come to the meeting of this kind; the set of those that said yes. */
rt_u32 lanes_meet(int kind, int says);
/* A word for lane `lane` to leave something in. */
rt_u32 *lanes_word(rt_u32 lane);

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
    return lanes_meet(1, !condition) == 0;
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
        *lanes_word(0) = value;
    lanes_meet(3, 0);
    value = *lanes_word(0);
    lanes_meet(4, 0); /* the first lane may leave another */
    return value;
}
RT_FN rt_u32 rt_of(rt_u32 value, rt_u32 lane)
{
    *lanes_word(lanes_current()) = value;
    lanes_meet(5, 0);
    value = *lanes_word(lane);
    lanes_meet(6, 0);
    return value;
}
RT_FN rt_u32 rt_twin(rt_u32 value, int *last)
{
    const rt_u32 lane = lanes_current();
    rt_u32 twin = lane;
    *lanes_word(lane) = value;
    lanes_meet(7, 0);
    for (rt_u32 i = 0; i < lane; i++)
        twin = *lanes_word(i) == value ? i : twin;
    *last = 1;
    for (rt_u32 i = lane + 1; i < RT_LANES; i++)
        *last &= *lanes_word(i) != value;
    lanes_meet(8, 0);
    return twin;
}

#endif
