#!/bin/sh
# Builds libmm_cuda.so for the emulator with g++: tests/emu/build.sh OUT.so [FILE.cu ...]
# No files: all of kernels/cuda. Files: those (by name, e.g. moe.cu) and those that every build
# needs; what they call elsewhere becomes functions that fail and name themselves. Incremental;
# objects lie in OUT.so.d.   SAN=address,undefined   OPT=-O2   JOBS=2   SKIP_BROKEN=1 (leaves out
# files that do not compile)
set -eu
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/../.."
python=$(command -v python3 || command -v python)
san=${SAN:-} objects=$out.d/${SAN:-plain}${OPT:--O2}
flags="-std=c++17 ${OPT:--O2} -g1 -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing -Wall -Wno-unknown-pragmas"
flags="$flags -Wno-unused-function -Wno-unused-variable -Wno-maybe-uninitialized -DMM_EMU=1 -Itests/emu -I."
if [ -n "$san" ]; then flags="$flags -fsanitize=$san -fno-omit-frame-pointer"; fi
files=
if [ $# = 0 ]; then
    files=$(cd kernels/cuda && ls ./*.cu | sed 's|^\./||')
else
    files=$(printf '%s\n' "$@" ops.cu attn.cu embed.cu launch.cu $(cd kernels/cuda && ls backend*.cu) | sed 's|.*/||' | sort -u)
fi
mkdir -p "$objects"

# One compiler command, only if something that its object depends on has changed.
cat >"$objects/compile" <<END
#!/bin/sh
source=\$1 object=$objects/\$(basename \$1).o
if [ -f "\$object" ] && [ -f "\$object.d" ]; then
    new=\$(sed -e 's/^[^:]*://' -e 's/\\\\\\\\\$//' "\$object.d" | tr ' ' '\n' | sed '/^\$/d' | while read -r f; do
        if [ ! -f "\$f" ] || [ "\$f" -nt "\$object" ]; then echo "\$f"; fi
    done)
    if [ -z "\$new" ]; then exit 0; fi
fi
rm -f "\$object"
\${CXX:-g++} -x c++ $flags -include cuda_runtime.h -MMD -MF "\$object.d" -c "\$source" -o "\$object"
END
chmod +x "$objects/compile"
sources="tests/emu/emu.cpp tests/emu/emu_copy.cpp tests/emu/emu_host.cpp tests/emu/emu_missing.cpp"
for f in $files; do sources="$sources kernels/cuda/$f"; done
if ! printf '%s\n' $sources | xargs -P "${JOBS:-2}" -n 1 "$objects/compile"; then
    [ -n "${SKIP_BROKEN:-}" ] || exit 1
fi
list=
for f in $sources; do
    object=$objects/$(basename "$f").o
    if [ -f "$object" ]; then list="$list $object"; fi
done
"$python" tests/emu/stubs.py $list >"$objects/stubs.c"
${CC:-gcc} -O1 -fPIC -c "$objects/stubs.c" -o "$objects/stubs.o"
link=
if [ -n "$san" ]; then link=-fsanitize=$san; fi
${CXX:-g++} -shared $link -Wl,-z,defs $list "$objects/stubs.o" -o "$out.new" -lpthread -lm
mv "$out.new" "$out"
