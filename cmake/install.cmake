# make install: headers, library, tools (tools/CMakeLists.txt), the CMake package DeepSpeed, and deepspeed.pc.
if(NOT DEEPSPEED_TORCH)
  return()
endif()
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/DeepSpeed)
install(TARGETS deepspeed EXPORT DeepSpeedTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT DeepSpeedTargets NAMESPACE DeepSpeed:: DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/deepspeed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
# ds_train calls it to tokenise text.
install(PROGRAMS ${PROJECT_SOURCE_DIR}/scripts/tokenize_text.py DESTINATION ${CMAKE_INSTALL_DATADIR}/deepspeed)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/DeepSpeedConfig.cmake.in ${CMAKE_BINARY_DIR}/DeepSpeedConfig.cmake
                              INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_DATADIR)
# Minor versions may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/DeepSpeedConfigVersion.cmake VERSION ${DEEPSPEED_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/DeepSpeedConfig.cmake ${CMAKE_BINARY_DIR}/DeepSpeedConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindLibTorchWheel.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/deepspeed.pc.in ${CMAKE_BINARY_DIR}/deepspeed.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/deepspeed.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
