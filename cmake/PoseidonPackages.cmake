# Where things go on an installed machine, and the Debian packages: `cmake --build --preset release --target package`
# leaves poseidon-{common,coordinator,server,worker,cli}_VERSION_ARCH.deb in build/release/packages, and
# poseidon-worker-cuda where the CUDA device is built.

include(GNUInstallDirs)
set(deploy ${CMAKE_SOURCE_DIR}/deploy)

foreach(role coordinator server worker)
  install(TARGETS poseidon-${role} RUNTIME DESTINATION bin COMPONENT ${role})
  install(FILES ${deploy}/systemd/poseidon-${role}.service DESTINATION lib/systemd/system COMPONENT ${role})
  install(FILES ${deploy}/config/${role}.json DESTINATION /etc/poseidon COMPONENT ${role}
          PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()
install(TARGETS poseidon RUNTIME DESTINATION bin COMPONENT cli)
install(FILES ${deploy}/jobs/digits.json DESTINATION share/doc/poseidon-cli/examples COMPONENT cli)
install(FILES ${deploy}/systemd/poseidon.sysusers DESTINATION lib/sysusers.d RENAME poseidon.conf COMPONENT common)
install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION share/doc/poseidon-common COMPONENT common)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/ DESTINATION share/doc/poseidon-common COMPONENT common)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_CONTACT "Poseidon <poseidon@localhost>")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL common coordinator server worker cli)
if(TARGET poseidon_cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  # The worker in bin looks for it in ../lib/poseidon (worker/engine/plugin/device_plugin.h).
  install(TARGETS poseidon_cuda LIBRARY DESTINATION lib/poseidon COMPONENT cuda)
  install(FILES ${deploy}/systemd/poseidon-gpu.service DESTINATION lib/systemd/system COMPONENT cuda)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_COMMON_PACKAGE_NAME poseidon-common)
set(CPACK_DEBIAN_COMMON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_COMMON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_COMMON_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
set(CPACK_COMPONENT_COMMON_DESCRIPTION
    "Trains deep networks on many machines over Ethernet: user and documentation\n The user that the daemons run as, and the documentation.")
set(CPACK_DEBIAN_COMMON_PACKAGE_CONTROL_EXTRA "${deploy}/packages/common/postinst;${deploy}/packages/common/postrm")

set(CPACK_COMPONENT_COORDINATOR_DESCRIPTION
    "Trains deep networks on many machines over Ethernet: coordinator\n Keeps the cluster's members, plans its job and watches it; one per cluster.")
set(CPACK_COMPONENT_SERVER_DESCRIPTION
    "Trains deep networks on many machines over Ethernet: parameter server\n Holds a shard of the parameters, sums gradients, steps the optimizer, keeps\n checkpoints.")
set(CPACK_COMPONENT_WORKER_DESCRIPTION
    "Trains deep networks on many machines over Ethernet: worker\n Computes gradients and synchronises them with the rest of the cluster.")
set(CPACK_COMPONENT_CLI_DESCRIPTION
    "Trains deep networks on many machines over Ethernet: operator's command\n Submits jobs, shows what they do, keeps checkpoints, plans ahead.")
set(CPACK_DEBIAN_CLI_PACKAGE_NAME poseidon-cli)
set(CPACK_COMPONENT_CUDA_DESCRIPTION
    "Trains deep networks on many machines over Ethernet: NVIDIA GPUs\n What poseidon-worker loads to compute on NVIDIA GPUs. Needs the NVIDIA driver,\n cuBLAS of the same major CUDA version and cuDNN 9, which come from NVIDIA, not\n from Debian; without them a worker on a machine with a GPU\n says so and ends.")
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME poseidon-worker-cuda)
# NVIDIA's libraries are of no package that could be asked for; all others that it needs the worker has too.
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "poseidon-worker (= ${PROJECT_VERSION})")
foreach(role coordinator server worker)
  string(TOUPPER ${role} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME poseidon-${role})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "poseidon-common (= ${PROJECT_VERSION})")
  # One script for all three, with the role's name in it.
  set(scripts ${CMAKE_BINARY_DIR}/package-scripts/${role})
  foreach(script postinst prerm postrm)
    configure_file(${deploy}/packages/daemon/${script}.in ${scripts}/${script} @ONLY FILE_PERMISSIONS
                   OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endforeach()
  configure_file(${deploy}/packages/daemon/conffiles.in ${scripts}/conffiles @ONLY)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
      "${scripts}/postinst;${scripts}/prerm;${scripts}/postrm;${scripts}/conffiles")
endforeach()
include(CPack)
