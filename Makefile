# The index of the project: every job is a script in scripts/, which says more about itself at its top.
# The text of `make help` is made from the lines below that have two #.
MAKEFLAGS += --no-print-directory
S := scripts

help:		## this text
	@echo "Targets:"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
	@echo "Variables:"
	@sed -n 's/^##  //p' Makefile

##  KDIR=dir     a kernel git tree (7.3 or newer) to use instead of Debian's source; stays untouched
##  BED=svm|vmx  the emulated host: QEMU with SVM (or on /dev/kvm, if there is one), or Bochs with VMX (default: svm)
##  TESTS="..."  which KVM selftests to run (default: those the series adds)
##  KERNEL=debug|kcsan  kselftest on a series kernel with KASAN, lockdep and the like, or with KCSAN
##  HOST=1       kselftest on this machine instead of an emulated host
##  PART=a|b|c   of make mbox: one posting
##  JOBS=n       parallel compile jobs (default: the number of CPUs)
##  DEBIAN_MIRROR=url   default: the mirror that this machine's apt uses

demo: kernel selftests	## the main job: base and series host, one overcommitted guest each, a table
	@$S/demo

test:		## all that CI runs; the last line is 'N passed, N failed, N skipped'
	@$S/test

test-long:	## what takes too long for make test: mutations of the kernel, repeated benchmarks
	@$S/test long

deps:		## install the Debian packages that are missing (as root; else say how)
	@$S/deps

tree: deps	## build/linux: the base and on it the series, one commit a patch
	@$S/tree

kernel: tree	## build the base and the series kernel
	@$S/kernel base >/dev/null
	@$S/kernel series >/dev/null

selftests: tree	## build the KVM selftests
	@$S/selftests >/dev/null

vm: kernel	## a shell in an emulated host that runs the series kernel
	@$S/boot

# On this machine no kernel has to be built.
kselftest: selftests $(if $(HOST),,kernel)	## run KVM selftests, in an emulated host or on this machine
ifdef KERNEL
	@$S/kernel series host $(KERNEL) >/dev/null
endif
	@$S/kselftest

check: kernel	## static checks of the series, no host is booted
	@$S/check

bench: demo	## deterministic figures, base against series, into results/ (demo, cost of an exit)
	@$S/bench-cost
	@cp build/demo.txt build/cost.txt build/cost.csv results/

series:		## export the git tree to patches/ and selftests/
	@$S/series

mbox:		## one mbox to send or to feed `b4 am`, signed off by whoever runs it
	@$S/mbox

clean:		## delete what was built, but neither the git trees nor what was downloaded
	rm -rf build/*/obj-* build/run build/ccache build/*.log build/*.tap

.PHONY: help demo test test-long deps tree kernel selftests vm kselftest check bench series mbox clean
.NOTPARALLEL:
