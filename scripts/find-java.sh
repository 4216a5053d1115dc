#!/usr/bin/env bash
# Finds a Java that Spark can run on and prints its home. If no such Java exists, it installs one, if it may (root, apt-get),
# or says what to install.
#
# Wanted: version 17 or newer with the module jdk.incubator.vector, which Spark 4 passes to the JVM by name. Every full
# JRE or JDK package has the module; a runtime cut down by jlink may not.
set -euo pipefail

oldest=17

# Prints the home of the Java binary $1 if it is good enough; explains on stderr what is wrong with it if not.
probe() {
    local home major
    home=$(dirname "$(dirname "$(readlink -f "$1")")")
    major=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || true
    if [ -z "$major" ]; then
        echo "  $1 does not run" >&2
    elif [ "$major" -lt "$oldest" ]; then
        # Java 8 calls itself 1.8.
        echo "  $1 is version $([ "$major" = 1 ] && echo 8 or older || echo "$major"), $oldest is the oldest that works" >&2
    elif ! "$1" --add-modules jdk.incubator.vector -version >/dev/null 2>&1; then
        echo "  $1 has no module jdk.incubator.vector" >&2
    else
        echo "$home"
    fi
}

candidates() {
    if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; fi
    type -aP java || true
    local binary
    for binary in /usr/lib/jvm/*/bin/java /opt/java/*/bin/java; do
        if [ -x "$binary" ]; then echo "$binary"; fi
    done
}

find_java() {
    local candidate home
    while read -r candidate; do
        home=$(probe "$candidate")
        if [ -n "$home" ]; then
            echo "$home"
            return 0
        fi
    done < <(candidates)
    return 1
}

complaints=$(mktemp)
trap 'rm -f "$complaints"' EXIT

if find_java 2>"$complaints"; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "keyedstate: no Java $oldest or newer found; installing one" >&2
    DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || true
    # 17 is what Spark 3.5 and 4 both support; newer Debian releases offer only their default, which is newer still.
    for package in openjdk-17-jre-headless default-jre-headless; do
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >&2; then break; fi
    done
    hash -r
    if find_java 2>"$complaints"; then exit 0; fi
fi

{
    echo "keyedstate: Spark needs Java $oldest or newer, and none was found."
    sort -u "$complaints"
    echo "  Debian, Ubuntu: apt-get install openjdk-17-jre-headless    (where 17 is not offered: default-jre-headless)"
    echo "  Installed elsewhere: set JAVA_HOME to its folder, the one that holds bin/java"
} >&2
exit 1
