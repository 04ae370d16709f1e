/* Data on the nodes (N-1 to N-11): the node stores, what befalls them, and what a process may do with them. */

/* What the node of each rank has: the files of its database and its receipt (N-3), which together appear in one step. */
byte node[GENS * RANKS];
#define NODE(g, r) node[(g) * RANKS + (r)]
#ifdef UNCOMPARED
#define HELD(g, r) (NODE(g, r) != ABSENT)
#else
#define HELD(g, r) (NODE(g, r) != ABSENT && NODE(g, r) != ROTTEN) /* N-6: cells are compared with their digests */
#endif

/* N-6: what is whole on the nodes, and on record, when the last process of the job dies; no failed receipt or abort is under way. */
#define HAS_PART(r) (obj[RECEIPT(0, r)] >= COMPLETE(0) || obj[RECEIPT(0, r)] == ABSENT && NODE(0, r) != ABSENT)
#define PROMISE promised = (obj[ON_NODES(0)] != ABSENT && obj[LEDGER(0)] == ABSENT && HAS_PART(0) && HAS_PART(1) \
	&& (flight_key == KEYS || flight_value > FAILED))

inline whole_on_node(g, w)
{
	obj[LAYOUT(g)] = 1;
	NODE(g, w) = CAPTURED_BY(w);
	obj[STAGED(g, w)] = COMPLETE(w)
}
