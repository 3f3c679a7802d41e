/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Guests with more vCPUs than the CPUs they may run on, whose vCPUs contend
 * for a lock.
 */
#ifndef SELFTEST_KVM_OVERCOMMIT_H
#define SELFTEST_KVM_OVERCOMMIT_H

#include "kvm_util.h"
#include "processor.h"

/* Bounds the guest's bookkeeping, not what KVM can do. */
#define OVERCOMMIT_MAX_VCPUS	64

/*
 * A ticket lock: waiters get it in the order in which they came, so a waiter
 * that is preempted holds up all behind it.  That makes it the lock that
 * suffers most when vCPUs are preempted.
 */
struct guest_lock {
	u32 next;
	u32 owner;
	/*
	 * Waiters that are halted, or about to: 1 + the vCPU's index, or 0.  By
	 * ticket; there are no more tickets out at a time than vCPUs.
	 */
	u32 halted[OVERCOMMIT_MAX_VCPUS];
} __aligned(64);

struct overcommit {
	struct kvm_vm *vm;
	int nr_vcpus;
	struct kvm_vcpu *vcpus[OVERCOMMIT_MAX_VCPUS];
	u64 spins[OVERCOMMIT_MAX_VCPUS];
};

/* Host */
struct overcommit *overcommit_create(int nr_vcpus, u64 disable_exits,
				     void (*guest_code)(u32 vcpu));
void overcommit_run(struct overcommit *oc, int nr_pcpus);
void overcommit_free(struct overcommit *oc);
u64 overcommit_guest_spins(struct overcommit *oc, int vcpu);
int overcommit_max_pcpus(void);
bool kvm_has_pause_exits(void);
struct kvm_stats_desc *vcpu_find_stat(struct kvm_vcpu *vcpu, const char *name);
bool vm_read_debugfs_stat(struct kvm_vm *vm, const char *name, u64 *value);

/*
 * Guest.  @vcpu is the caller's index.  Each round of a wait counts as one spin
 * of that vCPU and, if @pause, executes PAUSE exactly once.
 */
void guest_lock_acquire(struct guest_lock *lock, u32 vcpu, bool pause);
void guest_lock_release(struct guest_lock *lock);
void guest_lock_acquire_or_halt(struct guest_lock *lock, u32 vcpu, u32 max_spins);
void guest_lock_release_and_kick(struct guest_lock *lock);
void guest_lock_hold_until_spun(struct guest_lock *lock, u32 vcpu, u64 spins);

#endif /* SELFTEST_KVM_OVERCOMMIT_H */
