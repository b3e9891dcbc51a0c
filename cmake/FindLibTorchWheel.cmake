# LibTorch from the PyPI wheel, without a CUDA toolkit.
#
# TorchConfig.cmake of the CUDA wheel refuses to load where no CUDA toolkit is installed. This module needs none: it asks Python where
# torch is and makes imported targets of the libraries that are there. Where no wheel is found it falls back to find_package(Torch).
#
# In:  LIBTORCH_ROOT or TORCH_INSTALL_PREFIX (folder that holds include/ and lib/), else Python3_EXECUTABLE or python3 is asked.
# Out: target LibTorch::torch (headers, torch_cpu, c10, with CUDA parts when the wheel has them and DEEPSPEED_WITH_CUDA is on);
#      LibTorchWheel_FOUND, LIBTORCH_ROOT, LIBTORCH_VERSION.
if(TARGET LibTorch::torch)
  set(LibTorchWheel_FOUND TRUE)
  return()
endif()

if(NOT LIBTORCH_ROOT AND DEFINED ENV{TORCH_INSTALL_PREFIX})
  set(LIBTORCH_ROOT "$ENV{TORCH_INSTALL_PREFIX}")
endif()
if(NOT LIBTORCH_ROOT)
  find_program(LIBTORCH_PYTHON NAMES ${Python3_EXECUTABLE} python3 python)
  if(LIBTORCH_PYTHON)
    execute_process(
      COMMAND ${LIBTORCH_PYTHON} -c
              "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE LIBTORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()

if(LIBTORCH_ROOT AND EXISTS "${LIBTORCH_ROOT}/lib/libtorch_cpu.so")
  file(STRINGS "${LIBTORCH_ROOT}/include/torch/headeronly/version.h" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  set(_parts)
  foreach(_line ${_lines})
    string(REGEX REPLACE ".* ([0-9]+)$" "\\1" _part "${_line}")
    list(APPEND _parts ${_part})
  endforeach()
  list(JOIN _parts "." LIBTORCH_VERSION)
  if(LIBTORCH_VERSION AND NOT LIBTORCH_VERSION MATCHES "^2\\.15\\.")
    message(FATAL_ERROR "[cmake] torch version: got ${LIBTORCH_VERSION}, allowed 2.15.x (its C++ interface changes between minor "
                        "versions). Install torch==2.15.0 or point LIBTORCH_ROOT at one.")
  endif()
  foreach(_name c10 torch_cpu)
    add_library(LibTorch::${_name} SHARED IMPORTED)
    set_target_properties(LibTorch::${_name} PROPERTIES IMPORTED_LOCATION "${LIBTORCH_ROOT}/lib/lib${_name}.so" IMPORTED_NO_SONAME TRUE)
  endforeach()
  add_library(LibTorch::torch INTERFACE IMPORTED)
  set_target_properties(
    LibTorch::torch
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${LIBTORCH_ROOT}/include;${LIBTORCH_ROOT}/include/torch/csrc/api/include"
               INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LIBTORCH_ROOT}/include;${LIBTORCH_ROOT}/include/torch/csrc/api/include"
               INTERFACE_COMPILE_FEATURES cxx_std_20
               INTERFACE_COMPILE_DEFINITIONS "FMT_HEADER_ONLY=1"
               INTERFACE_LINK_LIBRARIES "LibTorch::torch_cpu;LibTorch::c10"
               # The wheel's own dependencies (libcudart, libcupti, libgomp) are found by its RPATH at run time.
               INTERFACE_LINK_OPTIONS "-Wl,-rpath,${LIBTORCH_ROOT}/lib;-Wl,--allow-shlib-undefined")
  set(LibTorchWheel_FOUND TRUE)
else()
  find_package(Torch QUIET)
  if(Torch_FOUND)
    add_library(LibTorch::torch INTERFACE IMPORTED)
    set_target_properties(LibTorch::torch PROPERTIES INTERFACE_LINK_LIBRARIES "${TORCH_LIBRARIES}"
                                                     INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
                                                     INTERFACE_COMPILE_FEATURES cxx_std_20)
    set(LIBTORCH_VERSION "${Torch_VERSION}")
    set(LibTorchWheel_FOUND TRUE)
  elseif(LibTorchWheel_FIND_REQUIRED)
    message(FATAL_ERROR "[cmake] no torch found: install it (pip install torch==2.15.0) and pass -DPython3_EXECUTABLE=.../python, "
                        "or set LIBTORCH_ROOT to the folder that holds its include/ and lib/.")
  endif()
endif()
