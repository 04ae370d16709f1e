# 0 "/work/main/spec/v1/model/protocol.pml"
# 0 "<built-in>"
# 0 "<command-line>"
# 1 "/usr/include/stdc-predef.h" 1 3 4
# 0 "<command-line>" 2
# 1 "/work/main/spec/v1/model/protocol.pml"
# 35 "/work/main/spec/v1/model/protocol.pml"
# 1 "/work/main/spec/v1/model/store.pml" 1
# 44 "/work/main/spec/v1/model/store.pml"
byte obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2 + 1) - 1)];
# 65 "/work/main/spec/v1/model/store.pml"
byte faults;





byte flight_key = (((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2 + 1) - 1), flight_value, flight_by;
# 86 "/work/main/spec/v1/model/store.pml"
inline make_durable()
{






 skip

}


inline create(key, value, by)
{
 if



 :: obj[key] == 0 ->

  obj[key] = value;
  skip;
  observe_creation(key, value, by)
 :: else
 fi
}


inline put_if_absent(key, value, found)
{
 do
 :: atomic {







  create(key, value, me);
  found = obj[key]

    };



    skip;

    break
 :: atomic { (faults < 0) -> faults++;
  if
  :: create(key, value, me)
  :: flight_key == (((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2 + 1) - 1) -> flight_key = key; flight_value = value; flight_by = me
  fi };




 od
}


inline get(key, found)
{
 if
 :: found = obj[key]
 :: atomic { (faults < 0) -> faults++; found = 255 }
 fi
}
# 36 "/work/main/spec/v1/model/protocol.pml" 2
# 1 "/work/main/spec/v1/model/invariants.pml" 1






hidden byte P50_readable_commit_verifies;
hidden byte P51_one_decision_that_never_changes;
hidden byte P52_captured_at_its_step_by_its_writer;
hidden byte P53_head_goes_back_only_by_a_base;
hidden byte P54_what_is_needed_is_not_deleted;
hidden byte P56_superseded_decides_nothing;
hidden byte P44_acknowledged_is_durable;
hidden byte P41_unknown_is_not_failure;
hidden byte P40_two_manifests_differ;
hidden byte P32_told_complete_means_taken;
hidden byte P12_abort_needs_a_proof;
hidden byte P11_complete_is_rolled_forward;
hidden byte K17_lost_data_was_retired;




byte first[(1 * 1)];
byte acknowledged, told_failed;
byte pinned;
byte line = 1, line_of = 1;
# 71 "/work/main/spec/v1/model/invariants.pml"
inline check_all()
{
 assert(P44_acknowledged_is_durable || ((!((acknowledged) & (1 << (0))) || ((obj[(0)]) > 1 && (obj[(0)]) < 254))));
 assert(P41_unknown_is_not_failure || ((!((told_failed) & (1 << (0))) || !((obj[(0)]) > 1 && (obj[(0)]) < 254))));
 assert(P50_readable_commit_verifies || ((!(((obj[(0)]) > 1 && (obj[(0)]) < 254) && obj[((1 * 1) + (0))] == 0) || (obj[(3 * (1 * 1) + (0))] == 1 && ((obj[(5 * (1 * 1) + (0) * 2 + (0))] >= (2 + (0))) && (obj[(5 * (1 * 1) + (0) * 2 + (1))] >= (2 + (0))) && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2))))] != 0 && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))] != 0)))));
 assert(P52_captured_at_its_step_by_its_writer || ((!(((obj[(0)]) > 1 && (obj[(0)]) < 254) && obj[((1 * 1) + (0))] == 0) || !(obj[(5 * (1 * 1) + (0) * 2 + (0))] >= (2 + (0))) || !(obj[(5 * (1 * 1) + (0) * 2 + (1))] >= (2 + (0))) || ((obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2))))] == 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2))))] == (1 + (((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2)))) && (obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))] == 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))] == (1 + (((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))))));
 assert(P54_what_is_needed_is_not_deleted || (((!(((obj[(0)]) > 1 && (obj[(0)]) < 254) && obj[((1 * 1) + (0))] == 0) || ((0) != 99 || ((obj[(5 * (1 * 1) + (0) * 2 + (0))] >= (2 + (0))) && (obj[(5 * (1 * 1) + (0) * 2 + (1))] >= (2 + (0))) && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2))))] != 0 && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))] != 0))) && (!(line_of > 1 && line_of == (obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2) - 1)] -> 2 : 1) && obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (line_of) - 1)] == (2 + (0)) || ((pinned) & (1 << (0)))) || (obj[(3 * (1 * 1) + (0))] == 1 && ((obj[(5 * (1 * 1) + (0) * 2 + (0))] >= (2 + (0))) && (obj[(5 * (1 * 1) + (0) * 2 + (1))] >= (2 + (0))) && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2))))] != 0 && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))] != 0)) && ((0) != 99 || ((obj[(5 * (1 * 1) + (0) * 2 + (0))] >= (2 + (0))) && (obj[(5 * (1 * 1) + (0) * 2 + (1))] >= (2 + (0))) && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2))))] != 0 && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))] != 0))))))
}


inline observe_creation(key, value, by)
{
 if
 :: key < (1 * 1) ->
  assert(P51_one_decision_that_never_changes || (first[key] == 0 || first[key] == value));
  assert(P56_superseded_decides_nothing || (by >= (obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2) - 1)] -> 2 : 1)));
  first[key] = value;
  line = (((value) > 1 && (value) < 254) && ((key) / 1 + 1) == line_of && line < (2 + (key)) -> (2 + (key)) : line)
 :: else
 fi;
 check_all()
}
# 104 "/work/main/spec/v1/model/invariants.pml"
inline observe_start(n, b, by_hand)
{
 assert(P53_head_goes_back_only_by_a_base || (by_hand || b == line || false));
 line_of = n;
 line = b;
 acknowledged = (b == 1 -> acknowledged : acknowledged | (1 << (((b) - 2))));
 check_all()
}
# 37 "/work/main/spec/v1/model/protocol.pml" 2
# 1 "/work/main/spec/v1/model/faults.pml" 1



proctype Network()
{
end: do
 :: atomic { flight_key != (((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2 + 1) - 1) ->
  if
  :: create(flight_key, flight_value, flight_by)
  :: true
  fi;
  flight_key = (((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2 + 1) - 1); flight_value = 0; flight_by = 0 }
 od
}
# 38 "/work/main/spec/v1/model/protocol.pml" 2
# 1 "/work/main/spec/v1/model/participant.pml" 1



inline wait_for_outcome(g, receipt)
{
 if
 :: atomic { obj[(g)] != 0 -> x = obj[(g)]; skip };
    atomic {
  if
  :: ((x) > 1 && (x) < 254) ->
   assert(P32_told_complete_means_taken || (obj[(5 * (1 * 1) + (g) * 2 + (w))] == receipt));
   acknowledged = acknowledged | (1 << (g))
  :: else -> told_failed = told_failed | (1 << (g))
  fi;
  check_all() }
 :: true
 fi
}

proctype Rank(byte me; byte w)
{
 byte g, x;




 {
 g = (((me) - 1) * 1 + (0)) + (me == 1 -> 0 : 0);
 do
 :: g < (((me + 1) - 1) * 1 + (0)) ->
  if
  :: obj[((5 + 2 + 2) * (1 * 1) + (me + 1) - 1)] == 0
  :: else -> break
  fi;
  obj[(2 * (1 * 1) + (g))] = 1;
  if
  :: true -> goto failed
  :: true
  fi;



  atomic {



   obj[((5 + 2) * (1 * 1) + (g) * 2 + ((w)))] = (1 + (w));

   skip;
   check_all() };
  skip;

  put_if_absent((5 * (1 * 1) + (g) * 2 + (w)), (2 + (w)), x);

  if



  :: x == (2 + (w))
  :: else -> break

  fi;
  wait_for_outcome(g, (2 + (w)));
  x = 0; g++
 :: else -> break
 od;
 goto done;
failed: put_if_absent((5 * (1 * 1) + (g) * 2 + (w)), 1, x);
done: x = 0; g = 0
 }
}
# 39 "/work/main/spec/v1/model/protocol.pml" 2
# 1 "/work/main/spec/v1/model/coordinator.pml" 1
# 19 "/work/main/spec/v1/model/coordinator.pml"
inline forget()
{
 atomic { x = 0; r = 0; writer[0] = 0; writer[1] = 0; verdict = 0; gap = 0 }
}


inline look(key)
{
 atomic { get(key, x); gap = gap || (obj[key] == 0); skip }







}


inline gather(g, live)
{
 r = 0;
 do
 :: r < 2 && verdict == 0 ->
  look((5 * (1 * 1) + (g) * 2 + (r)));
  if
  :: x == 255 && live

  :: x == 255 -> verdict = 2



  :: x == 0 && live ->
   if
   :: obj[(5 * (1 * 1) + (g) * 2 + (r))] != 0
   :: verdict = 1
   fi
  :: x == 0 && !live -> verdict = 1




  :: x == 1 -> gap = 1; verdict = 1

  :: x != 255 && x >= (2 + (0)) -> writer[r] = ((x) - 2); r++
  fi
 :: else -> break
 od
}


inline prove(g)
{
 r = 0;
 do
 :: r < 2 && verdict == 0 ->
  look(((5 + 2) * (1 * 1) + (g) * 2 + ((writer[r]))));
  verdict = (x == 255 -> 2 : (x == 0 -> 1 : 0));
  r++
 :: else -> break
 od;
 if
 :: g == 99 && verdict == 0 ->
  atomic { get(((1 * 1) + (0)), x); gap = gap || (obj[((1 * 1) + (0))] != 0) };
  verdict = (x == 255 -> 2 : (x != 0 -> 1 : 0))
 :: else
 fi;
 if
 :: verdict == 0 ->




  put_if_absent((3 * (1 * 1) + (g)), 1, x)

 :: else
 fi
}


inline fence(n)
{
 get(((5 + 2 + 2) * (1 * 1) + (n + 1) - 1), x);
 outcome = (x == 255 -> 2 : (x != 0 -> 1 : 0))
}


inline decide(g, value)
{
 if
 :: (value) == 1 -> assert(P12_abort_needs_a_proof || (gap))
 :: else
 fi;
 put_if_absent((g), value, x);
 assert(P40_two_manifests_differ || (!((x) > 1 && (x) < 254) || !((value) > 1 && (value) < 254) || x == (value)))
}




inline conclude(g, live)
{






 gather(g, live);
 if
 :: verdict == 0 -> prove(g)
 :: else
 fi;

 if
 :: verdict == 2 -> outcome = 2
 :: else ->



  fence(me);

  if



  :: outcome == 0 -> decide(g, (verdict == 0 -> (1 + (writer[1])) : 1))
  :: else
  fi
 fi
}


inline report(g)
{
 atomic {
  if
  :: ((x) > 1 && (x) < 254) -> acknowledged = acknowledged | (1 << (g))
  :: else -> told_failed = told_failed | (1 << (g))
  fi;
  check_all() }
}

proctype Coordinator(byte n)
{
 byte me, g, x, r, writer[2], verdict, outcome; bit gap;



 {
 me = n;
 g = (((n) - 1) * 1 + (0)) + (n == 1 -> 0 : 0);
 do
 :: g < (((n + 1) - 1) * 1 + (0)) ->
  conclude(g, true);
  if
  :: outcome == 0 -> report(g)
  :: outcome == 2
  :: outcome == 1 -> break
  fi;
  forget();
  outcome = 0;
  g++
 :: else -> break
 od;
 forget()
 }
}
# 40 "/work/main/spec/v1/model/protocol.pml" 2
# 1 "/work/main/spec/v1/model/opening.pml" 1



inline claim(job)
{
 me = GREATEST_CLAIM;
 do



 :: me < 2 -> me++;

  put_if_absent(((5 + 2 + 2) * (1 * 1) + (me) - 1), job, x);
  if
  :: x == job -> break
  :: else
  fi
 :: else -> me = 0; break
 od
}
# 31 "/work/main/spec/v1/model/opening.pml"
inline settle()
{
 g = 0;
 do
 :: g < (1 * 1) && ((g) / 1 + 1) < me && outcome == 0 ->
  if
  :: (obj[(2 * (1 * 1) + (g))] != 0 || obj[(3 * (1 * 1) + (g))] != 0 || obj[(5 * (1 * 1) + (g) * 2 + (0))] != 0 || obj[(5 * (1 * 1) + (g) * 2 + (1))] != 0 || obj[((5 + 2) * (1 * 1) + (g) * 2 + (0))] != 0 || obj[((5 + 2) * (1 * 1) + (g) * 2 + (1))] != 0 || obj[((5 + 2) * (1 * 1) + (g) * 2 + (2 - 1))] != 0) && obj[(g)] == 0 -> conclude(g, false); forget()



  :: else
  fi;
  g++
 :: else -> break
 od
}


inline newest_base(end)
{
 m = 1; r = 1;
 do
 :: r < end -> atomic { m = (obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (r) - 1)] != 0 -> r : m); skip; r++ }
 :: else -> break
 od;
 b = obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (m) - 1)]; r = 0
}


inline find_head()
{
 newest_base(me);



 g = (((m + 1) - 1) * 1 + (0));
 do
 :: m <= 1 && g > (((m) - 1) * 1 + (0)) ->
  g--;
  atomic { x = obj[(g)]; skip };
  if
  :: ((x) > 1 && (x) < 254) && obj[((1 * 1) + (g))] == 0 -> b = (2 + (g)); break
  :: else
  fi
 :: else -> break
 od;
 m = 0; x = 0
}


inline start_from(b)
{
 if
 :: b == 1
 :: b != 1 ->
  g = ((b) - 2);
  if
  :: by_hand && !(((obj[(g)]) > 1 && (obj[(g)]) < 254) && obj[((1 * 1) + (g))] == 0) -> goto stopped
  :: !(obj[(3 * (1 * 1) + (g))] == 1 && ((obj[(5 * (1 * 1) + (g) * 2 + (0))] >= (2 + (0))) && (obj[(5 * (1 * 1) + (g) * 2 + (1))] >= (2 + (0))) && obj[((5 + 2) * (1 * 1) + (g) * 2 + ((((obj[(5 * (1 * 1) + (g) * 2 + (0))]) - 2))))] != 0 && obj[((5 + 2) * (1 * 1) + (g) * 2 + ((((obj[(5 * (1 * 1) + (g) * 2 + (1))]) - 2))))] != 0)) || !((g) != 99 || ((obj[(5 * (1 * 1) + (0) * 2 + (0))] >= (2 + (0))) && (obj[(5 * (1 * 1) + (0) * 2 + (1))] >= (2 + (0))) && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (0))]) - 2))))] != 0 && obj[((5 + 2) * (1 * 1) + (0) * 2 + ((((obj[(5 * (1 * 1) + (0) * 2 + (1))]) - 2))))] != 0)) -> goto stopped
  :: else
  fi
 fi;



 put_if_absent((((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (me) - 1), b, x);

 if



 :: b != 1 && obj[((1 * 1) + (((b) - 2)))] != 0 ->
  g = ((b) - 2);
  newest_base(me);
  if
  :: b == (2 + (g))
  :: else -> goto stopped
  fi

 :: else
 fi;

 gap = 0
}


inline still_newest()
{

 fence(me);
 if
 :: outcome != 0 -> goto stopped
 :: else
 fi

}

proctype Opener(byte job; byte by_hand)
{
 byte me, g, x, r, writer[2], verdict, outcome; bit gap;
 byte b, m;



 {
 claim(job);
 if
 :: me == 0 -> goto stopped
 :: else
 fi;
 settle();
 if
 :: outcome != 0 -> goto stopped
 :: else
 fi;
 if
 :: by_hand -> b = by_hand
 :: else -> find_head()
 fi;
 start_from(b);
 still_newest();
 atomic { observe_start(me, b, by_hand); hand_over(me) };
stopped:
 forget();
 atomic { g = 0; b = 0; m = 0; outcome = 0; me = 0 }
 }
}


inline hand_over(n)
{
 if
 :: n <= 1 -> run Rank(n, 0); run Rank(n, 1); run Coordinator(n)
 :: else
 fi
}
# 41 "/work/main/spec/v1/model/protocol.pml" 2
# 1 "/work/main/spec/v1/model/collector.pml" 1
# 32 "/work/main/spec/v1/model/collector.pml"
inline look_again(g)
{
 newest_base(2 + 1);
 keep = (b == (2 + (g)));
 m = 0; b = 0;

 keep = keep || (obj[(4 * (1 * 1) + (g))] != 0);


 keep = keep || (g == 0 && 99 < (1 * 1) && obj[(5 * (1 * 1) + (99) * 2 + (0))] != 0 && obj[(99)] == 0);

 keep = keep || ((g) == 0 && 99 < (1 * 1) && ((((obj[(99)]) > 1 && (obj[(99)]) < 254) && obj[((1 * 1) + (99))] == 0) || (obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + ((obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2) - 1)] -> 2 : 1)) - 1)] == (2 + (99))) || obj[(4 * (1 * 1) + (99))] != 0))
}


inline delete_all(g)
{
 r = 0;
 do
 :: r < 2 -> atomic { obj[((5 + 2) * (1 * 1) + (g) * 2 + (r))] = 0; check_all(); r++ }
 :: else -> break
 od;
 atomic {
  r = 0;
  obj[(5 * (1 * 1) + (g) * 2 + (0))] = 0; obj[(5 * (1 * 1) + (g) * 2 + (1))] = 0; obj[(3 * (1 * 1) + (g))] = 0; obj[(2 * (1 * 1) + (g))] = 0;
  check_all() }
}


inline abort_left_behind(g)
{
 fence(me == (2 + 1) -> m : me);
 m = 0;
 if
 :: outcome == 0 ->





  put_if_absent((g), 1, x);

  keep = (x != 1); x = 0
 :: else -> keep = 1
 fi;
 x = 0; outcome = 0
}

proctype Collector(byte me)
{
 byte g, x, r, b, m, task, outcome; bit keep;




 {
end: do
 :: atomic { task == 0 && ((((obj[(0)]) > 1 && (obj[(0)]) < 254) && obj[((1 * 1) + (0))] == 0) && (((1) > (0) && (1) < (1 * 1) && (((obj[(1)]) > 1 && (obj[(1)]) < 254) && obj[((1 * 1) + (1))] == 0)) || ((2) > (0) && (2) < (1 * 1) && (((obj[(2)]) > 1 && (obj[(2)]) < 254) && obj[((1 * 1) + (2))] == 0)) || ((3) > (0) && (3) < (1 * 1) && (((obj[(3)]) > 1 && (obj[(3)]) < 254) && obj[((1 * 1) + (3))] == 0))) && !(obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + ((obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2) - 1)] -> 2 : 1)) - 1)] == (2 + (0))) && obj[(4 * (1 * 1) + (0))] == 0 && !((0) == 0 && 99 < (1 * 1) && ((((obj[(99)]) > 1 && (obj[(99)]) < 254) && obj[((1 * 1) + (99))] == 0) || (obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + ((obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (2) - 1)] -> 2 : 1)) - 1)] == (2 + (99))) || obj[(4 * (1 * 1) + (99))] != 0))) -> g = 0; task = 1 } :: atomic { task == 0 && ((obj[(2 * (1 * 1) + (0))] != 0 || obj[(3 * (1 * 1) + (0))] != 0 || obj[(5 * (1 * 1) + (0) * 2 + (0))] != 0 || obj[(5 * (1 * 1) + (0) * 2 + (1))] != 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + (0))] != 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + (1))] != 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + (2 - 1))] != 0) && obj[(0)] == 0 && ((0) / 1 + 1) < (me == (2 + 1) -> (obj[((5 + 2 + 2) * (1 * 1) + (2) - 1)] -> 2 : 1) : me)) -> g = 0; task = 2; m = (obj[((5 + 2 + 2) * (1 * 1) + (2) - 1)] -> 2 : 1); skip } :: atomic { task == 0 && ((obj[(2 * (1 * 1) + (0))] != 0 || obj[(3 * (1 * 1) + (0))] != 0 || obj[(5 * (1 * 1) + (0) * 2 + (0))] != 0 || obj[(5 * (1 * 1) + (0) * 2 + (1))] != 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + (0))] != 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + (1))] != 0 || obj[((5 + 2) * (1 * 1) + (0) * 2 + (2 - 1))] != 0) && (obj[(0)] == 1 || ((obj[(0)]) > 1 && (obj[(0)]) < 254) && obj[((1 * 1) + (0))] != 0)) -> g = 0; task = 3; skip; skip }






 :: task == 1 ->
  put_if_absent(((1 * 1) + (g)), 1, x);
  x = 0; g = 0; task = 0
 :: task == 2 ->



  abort_left_behind(g);
  if
  :: keep
  :: else -> delete_all(g)
  fi;
  keep = 0; g = 0; task = 0
 :: task == 3 ->
  if
  :: obj[(g)] == 1




  :: else -> look_again(g)



  fi;
  if
  :: keep
  :: else -> delete_all(g)
  fi;
  keep = 0; g = 0; task = 0



 od
 }
}


proctype Pinner(byte g)
{
 byte me, x;
 atomic { (((obj[(g)]) > 1 && (obj[(g)]) < 254) && obj[((1 * 1) + (g))] == 0) -> skip };
 put_if_absent((4 * (1 * 1) + (g)), 1, x);
 atomic { pinned = (obj[((1 * 1) + (g))] == 0 -> pinned | (1 << (g)) : pinned); check_all() };
 x = 0
}
# 42 "/work/main/spec/v1/model/protocol.pml" 2
# 1 "/work/main/spec/v1/model/reader.pml" 1


inline read_data(g)
{
 r = 0;
 do
 :: r < 2 ->
  if
  :: obj[(5 * (1 * 1) + (g) * 2 + (r))] != 0 && obj[((5 + 2) * (1 * 1) + (g) * 2 + ((((obj[(5 * (1 * 1) + (g) * 2 + (r))]) - 2))))] != 0
  :: else ->
   assert(K17_lost_data_was_retired || (obj[((1 * 1) + (wanted))] != 0));
   break
  fi;
  r++
 :: else -> break
 od;
 r = 0
}

proctype Reader(byte wanted)
{
 byte r;
 atomic { (((obj[(wanted)]) > 1 && (obj[(wanted)]) < 254) && obj[((1 * 1) + (wanted))] == 0) -> skip };
 read_data(wanted);
 if
 :: wanted == 99 -> read_data(0)
 :: else
 fi
}
# 43 "/work/main/spec/v1/model/protocol.pml" 2
# 53 "/work/main/spec/v1/model/protocol.pml"
inline committed_before(g)
{
 obj[(2 * (1 * 1) + (g))] = 1;
 obj[(3 * (1 * 1) + (g))] = 1;
 obj[((5 + 2) * (1 * 1) + (g) * 2 + (0))] = (1 + (0));
 obj[((5 + 2) * (1 * 1) + (g) * 2 + (1))] = (1 + (1));
 obj[(5 * (1 * 1) + (g) * 2 + (0))] = (2 + (0));
 obj[(5 * (1 * 1) + (g) * 2 + (1))] = (2 + (1));
 obj[(g)] = (1 + (1));
 first[g] = (1 + (1));
 line = (2 + (g))
}

init {



 atomic {
  obj[((5 + 2 + 2) * (1 * 1) + (1) - 1)] = 1;
  obj[(((5 + 2 + 2) * (1 * 1) + (2 + 2) - 1) + (1) - 1)] = 1;
# 92 "/work/main/spec/v1/model/protocol.pml"
  make_durable();
  run Rank(1, 0); run Rank(1, 1); run Coordinator(1)
 }
}
