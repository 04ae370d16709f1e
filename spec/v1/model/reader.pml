/* A reader of one commit (O-1 to O-14): what it misses must have been retired. */

inline read_data(g)
{
	r = 0;
	do
	:: r < RANKS ->
		if
		:: obj[RECEIPT(g, r)] != ABSENT && CHUNK(g, r) != ABSENT
		:: else -> /* O-14, K-17 */
#ifndef RETIRED_READ_FIRST
			retired = obj[RETIRED(wanted)];
#endif
			CHECK(K17_lost_data_was_retired, retired);
			break
		fi;
		r++
	:: else -> break
	od;
	r = 0
}

proctype Reader(byte wanted)
{
	byte r; bit retired;
end:	READABLE(wanted);
#ifdef RETIRED_READ_FIRST
	retired = obj[RETIRED(wanted)];
#endif
	read_data(wanted);
	if
	:: wanted == REFERRING -> read_data(SOURCE) /* O-5 */
	:: else
	fi
}
