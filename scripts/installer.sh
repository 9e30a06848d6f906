# Sourced by the scripts that install packages: with `uv`, which is several times as fast, or with pip where there is no
# uv. CASQUE_INSTALLER=pip avoids uv. The working directory is the root of the checkout.
# shellcheck shell=bash

# find_uv PYTHON...: set `uv` to its path, or to nothing. Takes the one on the PATH, or installs that of
# requirements/installer.lock into .cache/uv with the pip of one of these interpreters.
uv=
find_uv() {
    local python wanted place=$PWD/.cache/uv
    uv=
    [ "${CASQUE_INSTALLER:-uv}" = uv ] || return 0
    if uv --version >/dev/null 2>&1; then
        uv=$(command -v uv)
        return
    fi
    wanted=$(cksum <requirements/installer.lock)
    if [ "$(cat "$place/.casque-stamp" 2>/dev/null)" != "$wanted" ]; then
        for python in "$@"; do
            rm -rf "$place"
            if "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target "$place" \
                -r requirements/installer.lock >/dev/null 2>&1 && "$place/bin/uv" --version >/dev/null 2>&1; then
                echo "$wanted" >"$place/.casque-stamp"
                break
            fi
        done
    fi
    if [ -f "$place/.casque-stamp" ]; then uv=$place/bin/uv; fi
}

# make_environment PYTHON PLACE
make_environment() {
    rm -rf "$2"
    if [ -n "$uv" ]; then
        "$uv" venv --quiet --no-project --no-config --python "$1" "$2"
    else
        "$1" -m venv "$2"
    fi
}

# install_with PYTHON ARGUMENT...: the arguments must mean the same to uv and pip.
install_with() {
    local python=$1
    shift
    export DIST_EXTRA_CONFIG=$PWD/scripts/wheels.cfg
    if [ -n "$uv" ]; then
        _share_pip_settings
        # Build dependencies are locked too.
        if "$uv" pip install --quiet --python "$python" --build-constraints requirements/dev.lock "$@"; then return; fi
        echo "uv failed, trying pip" >&2
    fi
    if ! "$python" -m pip --version >/dev/null 2>&1; then "$python" -m ensurepip >/dev/null; fi
    # Modules are compiled when they are first imported.
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}

# Pass pip's index and certificates on to uv, which does not read pip's settings. Extra indexes and directories of wheels
# are left to pip, which runs if uv does not find everything.
_share_pip_settings() {
    local settings index trusted
    settings=$("${CASQUE_PYTHON:-python3}" -m pip config list 2>/dev/null || true)
    index=$(_pip_setting index-url <<<"$settings")
    trusted=$(_pip_setting cert <<<"$settings")
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=$index; fi
    if [ -n "$trusted" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE=$trusted; fi
}

# The environment comes before the files, and what is for `pip install` before what is for all of pip.
_pip_setting() {
    awk -v name="$1" -F"='" '
        $1 == "global." name && rank < 1 { rank = 1; value = $2 }
        $1 == "install." name && rank < 2 { rank = 2; value = $2 }
        $1 == ":env:." name { rank = 3; value = $2 }
        END { sub(/.$/, "", value); print value }'
}
