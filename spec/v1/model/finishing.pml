/* Saving by way of the nodes (N-1 to N-5), and what a start finishes (N-6, N-7). */

/* A machine is lost, and with it what its node store has (N-2). That its processes may go on without it is more than can happen. */
proctype Loss(byte r) { atomic { NODE(0, r) = ABSENT; promised = promised && obj[RECEIPT(0, r)] != ABSENT } }

#ifdef DEATH
/* A machine goes down with the job, and comes back with other bytes than were written. */
proctype Rot(byte r)
{
end:	atomic { killed && NODE(0, r) != ABSENT -> NODE(0, r) = ROTTEN; promised = promised && obj[RECEIPT(0, r)] != ABSENT }
}
#endif

/* N-10: the data of rank `r` is deleted from its node, by whichever process. */
#ifdef DELETED_WHILE_UNDECIDED
#define MAY_BE_DELETED(g) true
#else
#define MAY_BE_DELETED(g) (obj[LEDGER(g)] != ABSENT || NEWEST_BASE > INC(g))
#endif
proctype Tidy(byte r)
{
end:	atomic { MAY_BE_DELETED(0) -> NODE(0, r) = ABSENT }
}

inline put_receipt(g, r)
{
	CHECK(N5_receipt_vouches_for_data, obj[DATA(g, r)] != ABSENT || obj[LEDGER(g)] != ABSENT);
	put_if_absent(RECEIPT(g, r), COMPLETE(r), x)
}

/*
 * N-5: rank `r`'s files into the run's store, durable there, then its receipt. A file that is there is not written again
 * (S-9). x: the receipt that is there afterwards; ABSENT: the node has lost it; ERROR: the store refused.
 */
inline upload(g, r)
{
#ifdef RECEIPT_BEFORE_UPLOAD
	put_receipt(g, r);
#endif
	if
	:: atomic { HELD(g, r) ->
#ifdef REPLACED_FILES
		obj[DATA(g, r)] = NODE(g, r); MADE_VISIBLE(DATA(g, r));
#else
#ifdef FOUND_FILES_UNFLUSHED
		is_new = (obj[DATA(g, r)] == ABSENT);
#endif
		create(DATA(g, r), NODE(g, r));
#endif
		check_all() };
#ifdef FOUND_FILES_UNFLUSHED
		durable[DATA(g, r)] = durable[DATA(g, r)] || is_new;
#else
		SYNC(DATA(g, r));
#endif
		put_receipt(g, r)
	:: atomic { CAN_FAIL -> COUNT_FAULT; x = ERROR }
#ifdef LOST_PART_UPLOADED
	:: !HELD(g, r) -> put_receipt(g, r)
#else
	:: !HELD(g, r) -> x = ABSENT
#endif
	fi
}

/* A rank; `staged`: it has come as far as its staged receipt. */
proctype NodeRank(byte me; byte w; bit staged)
{
	byte g, x; bit is_new;
#ifdef POWER
	byte born;
	born = boots;
#endif
	{
	g = GEN(me, 0) + HISTORY;
	if
	:: staged
	:: !staged ->
		if
		:: obj[CLAIM(me + 1)] == ABSENT               /* P-31.1 */
		:: else -> goto done
		fi;
		obj[LAYOUT(g)] = 1;
		if
		:: true -> goto failed                        /* P-32 */
		:: true
		fi;
		NODE(g, w) = CAPTURED_BY(w);                  /* N-3: from here on it is whole on the node */
		put_if_absent(STAGED(g, w), COMPLETE(w), x)
	fi;
	upload(g, w);
	if
	:: x == COMPLETE(w) -> wait_for_outcome(g, COMPLETE(w)); goto done
	:: x == FAILED -> goto done
	:: x == ABSENT || x == ERROR -> goto failed
	fi;
failed:	put_if_absent(RECEIPT(g, w), FAILED, x);
done:	x = 0; g = 0; is_new = 0
	} UNTIL_DEATH
}

/* r: RANKS if the receipt or the data of every rank is there. */
inline look_at_nodes()
{
	r = 0;
	do
	:: r < RANKS ->
		atomic {
			get(RECEIPT(0, r), x);
			if
			:: x == ERROR || x == ABSENT && !HELD(0, r) -> break
			:: else -> r++
			fi }
	:: else -> break
	od
}

/* N-7: if the store fails, the start fails. What a node has lost meanwhile, or another receipt, is left to the settle. */
inline upload_missing()
{
	r = 0;
	do
	:: r < RANKS ->
		if
		:: obj[RECEIPT(0, r)] == ABSENT ->
			upload(0, r);
			if
#ifdef CLAIMED_ALL_THE_SAME
			:: x == ERROR -> break
#else
			:: x == ERROR -> goto stopped
#endif
			:: x != ERROR && x != COMPLETE(r) -> break
			:: x == COMPLETE(r)
			fi
		:: else
		fi;
		r++
	:: else -> break
	od
}

/* N-6: the newest undecided generation that is on record and of which somebody has what the store has not. */
inline finish()
{
	if
#ifndef JOB_DIES
	:: true                                               /* a start on other nodes */
#endif
	:: INC(0) >= NEWEST_BASE && obj[ON_NODES(0)] != ABSENT && obj[LEDGER(0)] == ABSENT ->
		look_at_nodes();
		if
		:: x == ERROR -> goto stopped
		:: x != ERROR && r == RANKS -> upload_missing()
		:: else
		fi
	:: else
	fi;
	r = 0; x = 0
}
