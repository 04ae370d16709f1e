byte obj[3];
inline obs(key, v) { assert(key < 3 || v) }
inline create(key, value, by) { if :: obj[key]==0 -> obj[key]=value; obs(key, by) :: else fi }
inline put(key, value, found) { do :: atomic { create(key, value, me); found = obj[key] }; break :: atomic { true -> if :: create(key,value,me) :: skip fi }; break od }
init { byte me, x; put((1+1), (2 < 1 -> 1: 2), x) }
