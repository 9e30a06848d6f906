# Sourced by the scripts that install packages: `uv` where it can be had, for it is many times as fast, and pip otherwise.
# CASQUE_INSTALLER=pip does without uv. The caller stands in the root of the checkout.
# shellcheck shell=bash

# Prints the path of uv: the one on the PATH, or that of requirements/installer.lock, fetched into .cache/uv by the pip of
# one of the interpreters that are named. Ends with 1 if there is none.
find_uv() {
    local python place=$PWD/.cache/uv
    [ "${CASQUE_INSTALLER:-uv}" = uv ] || return 1
    if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
        command -v uv
        return
    fi
    local wanted
    wanted=$(cksum <requirements/installer.lock)
    if [ "$(cat "$place/.casque-stamp" 2>/dev/null)" != "$wanted" ]; then
        rm -rf "$place"
        for python in "$@"; do
            if "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target "$place" \
                -r requirements/installer.lock >/dev/null 2>&1 && "$place/bin/uv" --version >/dev/null 2>&1; then
                echo "$wanted" >"$place/.casque-stamp"
                break
            fi
            rm -rf "$place"
        done
    fi
    [ -x "$place/bin/uv" ] && echo "$place/bin/uv"
}

# pip's settings of this machine that uv would not look at: the package index, and the certificates to trust.
# Further indexes and directories of wheels are left to pip, which is asked if uv does not find everything.
share_pip_settings() {
    local settings index
    settings=$("$1" -m pip config list 2>/dev/null || true)
    index=$(sed -nE "s/^(:env:|install|global|user|site)\.index-url='(.*)'$/\2/p" <<<"$settings" | head -n 1)
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX=$index
    fi
    local trusted
    trusted=$(sed -nE "s/^(:env:|install|global|user|site)\.cert='(.*)'$/\2/p" <<<"$settings" | head -n 1)
    if [ -n "$trusted" ] && [ -z "${SSL_CERT_FILE:-}" ]; then
        export SSL_CERT_FILE=$trusted
    fi
}
