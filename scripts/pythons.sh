# Sourced by scripts/setup: find the Pythons of this machine and choose one.
# shellcheck shell=bash

# Prefer another interpreter if python3 takes at least this many percent of its time.
WORTH_IT=115

# Print microseconds and path of each Python 3.11 or newer, python3 first.
list_pythons() {
    local name path found
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        # pyenv puts shims on the PATH for versions that are not active: run each to see.
        while read -r path; do
            if found=$("$path" -I scripts/speed.py 2>/dev/null); then echo "$found"; fi
        done < <(type -aP "$name")
    done | awk '!seen[$2]++'
}

# Print the path of the fastest Python on standard input, or of the first if it is not much slower.
choose_python() {
    awk -v worth="$WORTH_IT" '
        NR == 1 { first = $1; best = $1; path = $2 }
        $1 < best && first * 100 >= $1 * worth { best = $1; path = $2 }
        END { if (NR) print path }'
}

with_ensurepip() {
    local speed path
    while read -r speed path; do
        if "$path" -c 'import ensurepip' 2>/dev/null; then echo "$speed $path"; fi
    done
}
