/*
 * The protocol of chapters 8 and 9, for spin: which processes run, and how the run begins.
 *
 * A configuration is a set of macros (check.py has the table); what is not set has the default below.
 */

#ifndef RANKS
#define RANKS 2        /* participants of a save */
#endif
#ifndef WRITERS
#define WRITERS RANKS  /* processes that write as a rank; one more than ranks: rank 1 was started twice */
#endif
#ifndef INCS
#define INCS 2         /* incarnations that can be claimed */
#endif
#ifndef GEN_INCS
#define GEN_INCS 1     /* incarnations that save */
#endif
#ifndef SAVES
#define SAVES 1        /* saves of each of these */
#endif
#ifndef HISTORY
#define HISTORY 0      /* the first generations of incarnation 1 are commits from the beginning */
#endif
#ifndef FAULTS
#define FAULTS 0       /* answers that the store may lose or delay, and reads that it may fail */
#endif
#ifndef REFERRING
#define REFERRING 99   /* the generation that has a component by reference (P-33) … */
#endif
#ifndef SOURCE
#define SOURCE 0       /* … of this one */
#endif

#include "store.pml"
#include "invariants.pml"
#ifdef NODES
#include "nodes.pml"
#else
#define PROMISE skip
#endif
#include "faults.pml"
#include "participant.pml"
#include "coordinator.pml"
#ifdef NODES
#include "finishing.pml"
#endif
#include "opening.pml"
#ifdef ANYBODY
#include "anybody.pml"
#endif
#ifdef COLLECTOR
#include "collector.pml"
#endif
#ifdef READER
#include "reader.pml"
#endif

/* The processes of a configuration. */
#ifndef START
#define START run Rank(1, 0); run Rank(1, 1); run Coordinator(1)
#endif

/* A commit of incarnation 1 that was made long ago. */
inline committed_before(g)
{
	obj[LAYOUT(g)] = 1;
	obj[INDEX(g)] = WHOLE_INDEX;
	obj[DATA(g, 0)] = CAPTURED_BY(0);
	obj[DATA(g, 1)] = CAPTURED_BY(1);
	obj[RECEIPT(g, 0)] = COMPLETE(0);
	obj[RECEIPT(g, 1)] = COMPLETE(1);
	obj[LEDGER(g)] = MANIFEST(1);
	first[g] = MANIFEST(1);
	line = AT(g)
}

init {
#ifdef POWER
	byte key;
#endif
	atomic {
		obj[CLAIM(1)] = 1;
		obj[BASE(1)] = FRESH;
#if HISTORY > 0
		committed_before(0);
#endif
#if HISTORY > 1
		committed_before(1);
#endif
#if HISTORY > 2
		committed_before(2);
#endif
#ifdef RANK0_DELIVERED
		obj[LAYOUT(HISTORY)] = 1;
		obj[DATA(HISTORY, 0)] = CAPTURED_BY(0);
		obj[RECEIPT(HISTORY, 0)] = COMPLETE(0);
#endif
#ifdef NODES
		whole_on_node(HISTORY, 0);
#if STAGED_BEFORE > 1
		whole_on_node(HISTORY, 1);
#endif
#if STAGED_BEFORE > 2
		obj[ON_NODES(HISTORY)] = 1;
#endif
#endif
#ifdef DELIVERED_BEFORE
		/* Both ranks have delivered the next save. */
		committed_before(HISTORY);
		obj[INDEX(HISTORY)] = ABSENT;
		obj[LEDGER(HISTORY)] = ABSENT;
		first[HISTORY] = ABSENT;
		line = (HISTORY == 0 -> FRESH : AT(HISTORY - 1));
#endif
		make_durable();
		START
	}
}
