# Where the bundle's programs find their libraries; sourced by run.sh and bench/gpu.sh, with `bundle` its folder.
#
# Ours lie in lib/. The driver, CUDA and cuDNN are the machine's: of the loader, of an installed toolkit, or inside
# Python's packages (nvidia/*/lib, torch/lib), as `pip install torch` brings them.

# Folders where NVIDIA's libraries may be, the likelier first.
nvidia_folders() {
  local python
  echo "${LD_LIBRARY_PATH:-}" | tr ':' '\n'
  for python in python3 /opt/*/bin/python3 /opt/*/.venv/bin/python3; do
    command -v "$python" > /dev/null 2>&1 || continue
    "$python" -c 'import sys; print("\n".join(p for p in sys.path if p))' 2> /dev/null
  done | awk '!seen[$0]++' | while read -r site; do
    ls -d "$site"/nvidia/*/lib "$site"/torch/lib 2> /dev/null
  done
  ls -d /usr/local/cuda/lib64 /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /usr/local/nvidia/lib64 \
    /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib 2> /dev/null
  return 0
}

# "libcudnn.so.9 FOLDER" for each library that the plug-in needs, FOLDER "the loader's" or "missing" where it has none. Known to the
# loader is best: then what belongs together is together.
find_nvidia_libraries() {
  local name folder folders=() ldconfig
  [ -s "$bundle/lib/poseidon/nvidia.txt" ] || return 0
  ldconfig=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null || true)
  mapfile -t folders < <(nvidia_folders | awk 'NF && !seen[$0]++')
  while read -r name; do
    if grep -qF "$name " <<< "$ldconfig"; then echo "$name loader"; continue; fi
    for folder in "${folders[@]}" ""; do
      [ -n "$folder" ] || { echo "$name missing"; break; }
      if [ -e "$folder/$name" ]; then echo "$name $folder"; break; fi
    done
  done < <({ cat "$bundle/lib/poseidon/nvidia.txt"; echo libcuda.so.1; } | sort -u)
}

nvidia_libraries=$(find_nvidia_libraries)
# Only for programs of the bundle: the machine's own may need a later libstdc++ than ours.
poseidon_library_path=$bundle/lib
while read -r _ folder; do
  case $folder in
    /*) case ":$poseidon_library_path:" in *":$folder:"*) ;; *) poseidon_library_path+=:$folder ;; esac ;;
  esac
done <<< "$nvidia_libraries"
poseidon_library_path+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
