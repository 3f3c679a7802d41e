/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * To whom do vCPUs yield?  Read from the tracepoint kvm_directed_yield.
 */
#ifndef SELFTEST_KVM_YIELD_TRACE_H
#define SELFTEST_KVM_YIELD_TRACE_H

#include "kvm_util.h"

enum yield_trace_type {
	YIELD_TRACE_YIELD,	/* kvm:kvm_directed_yield */
	YIELD_TRACE_SWITCH,	/* sched:sched_switch */
	YIELD_TRACE_WAKEUP,	/* sched:sched_wakeup */
	YIELD_TRACE_EXIT,	/* kvm:kvm_exit */
	NR_YIELD_TRACE_TYPES,
};

struct yield_trace_event {
	enum yield_trace_type type;
	/* The task that yields, is switched away from, wakes another up, exits. */
	pid_t pid;

	/* Of YIELD_TRACE_SWITCH and YIELD_TRACE_WAKEUP: whom to, and whom. */
	pid_t next_pid;

	/* Of YIELD_TRACE_YIELD, see Documentation/virt/kvm/directed-yield.rst */
	int vcpu_id;
	int target_id;
	pid_t target_pid;
	char reason[16];
	int result;
	unsigned int visited;
};

struct yield_trace {
	struct yield_trace_event *events;
	struct yield_trace_event *end;	/* behind the last one */
	char path[64];
};

const char *yield_trace_unavailable(void);
void yield_trace_start(struct yield_trace *trace, unsigned int also);
void yield_trace_stop(struct yield_trace *trace);
void yield_trace_free(struct yield_trace *trace);

#endif /* SELFTEST_KVM_YIELD_TRACE_H */
