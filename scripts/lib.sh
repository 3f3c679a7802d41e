# shellcheck shell=bash
# What every script here shares: paths, the one-line error, the lock, and who is told what.
# Sourced, never run.  All variables that a user may set are named in `make help`.
set -euo pipefail
export LC_ALL=C

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$top/build
# Everything that depends on the kernel tree lives below $out: build/ itself for the Debian source,
# a directory of its own for each KDIR, so that they never share objects or branches.
if [ -n "${KDIR:-}" ]; then
	out=$build/kdir-$(printf %s "$(realpath -m "$KDIR")" | cksum | cut -d' ' -f1)
else
	out=$build
fi
linux=$out/linux		# the git tree: branch `series` on top of branch `base`
linux_base=$out/linux-base	# a worktree of `base`
jobs=${JOBS:-$(nproc)}
bed=${BED:-svm}

say()  { printf '%s\n' "$*" >&2; }
note() { printf '== %s\n' "$*" >&2; }
die()  { printf 'error: %s\n' "$*" >&2; exit 1; }

# rel PATH: PATH as the user would type it from the top directory.
rel() { realpath -m --relative-to="$top" "$1"; }

# tools WORD...: each must be a command; names all that are missing in one line.
tools() {
	local t missing=
	for t; do command -v "$t" >/dev/null || missing="$missing $t"; done
	[ -z "$missing" ] || die "missing:$missing. 'make deps' installs what the project needs (or says how)."
}

# space MIB WHAT: refuse to start what would fill the disk.
space() {
	local free
	mkdir -p "$build"
	free=$(df -Pm "$build" | awk 'NR == 2 { print $4 }')
	[ "$free" -ge "$1" ] ||
		die "$2 needs $1 MiB below build/, and $free MiB are free. Make room, or make build/ a symlink to a larger disk."
}

# lock: one writer at a time in $out; held until the script ends.
lock() {
	mkdir -p "$out"
	exec 9>"$out/.lock"
	flock -n 9 || { note "another run holds $(rel "$out")/.lock; waiting for it"; flock 9; }
}

# kernel_tree base|series: the source directory of that kernel.
kernel_tree() {
	case $1 in
	base) echo "$linux_base" ;;
	series) echo "$linux" ;;
	mutant) echo "$out/linux-mutate" ;;	# see scripts/mutate
	*) die "no such kernel: '$1' (base or series)" ;;
	esac
}
