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

# private_apt "SUITE..." [ELSE]: an apt configuration below build/apt/, so that the system's own sources and lists stay as
# they are.  Its options are in apt_opt.  The mirror is the one that this machine's apt already uses (DEBIAN_MIRROR= overrides
# it).  Errors say that the user may do ELSE instead.
private_apt() {
	local apt=$build/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror s
	tools apt-get apt-cache dpkg-deb
	[ -e $keyring ] || die "no $keyring: install debian-archive-keyring, or ${2:-use KDIR= with a kernel git tree}."
	mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
		grep -E '/debian/?$' | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }' || true)}
	[ -n "$mirror" ] || die "this machine's apt names no Debian mirror: set DEBIAN_MIRROR=http://.../debian, or ${2:-use KDIR=}."

	rm -rf "$apt"
	mkdir -p "$apt/lists/partial" "$apt/archives/partial"
	for s in $1; do echo "deb [signed-by=$keyring] $mirror $s main"; done > "$apt/sources.list"
	apt_opt=(-o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt" -o "Dir::Etc::sourcelist=$apt/sources.list"
		 -o Dir::Etc::sourceparts=- -o APT::Get::AllowUnauthenticated=false -o Acquire::AllowInsecureRepositories=false
		 -o Acquire::Languages=none -o Acquire::Retries=2 -o APT::Sandbox::User=root)

	# Fresh lists and --error-on=any: apt alone would shrug off a bad signature when it has older lists.
	if ! apt-get "${apt_opt[@]}" update --error-on=any -q >"$apt/log" 2>&1; then
		if grep -qiE 'signature|NO_PUBKEY|not signed|EXPKEYSIG' "$apt/log"; then
			die "the archive's signature does not verify: $(grep -iE -m1 'signature|NO_PUBKEY|not signed|EXPKEYSIG' "$apt/log")"
		fi
		die "cannot reach the Debian mirror ($(grep -m1 -E '^(Err|E:|W:)' "$apt/log" || echo no reason given)). Check the network, or ${2:-use KDIR=}."
	fi
}
