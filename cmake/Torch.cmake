# libtorch from the Python wheel, as the imported target quadrille::torch.
#
# The wheel's own TorchConfig.cmake of a CUDA build asks for a whole CUDA toolkit, which a CPU build of
# Quadrille does not need, so the few files are named here: torch_cpu, c10 and the OpenMP runtime that
# the wheel brings. Linking that same OpenMP runtime matters: two runtimes would be two thread pools.
set(QD_TORCH_DIR "" CACHE PATH "Folder of the torch package (the one with include/ and lib/)")
if(NOT QD_TORCH_DIR)
  file(GLOB torch_candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(NOT torch_candidates)
    message(FATAL_ERROR "No torch package in .venv. Run `make setup`, or pass -DQD_TORCH_DIR=.../site-packages/torch")
  endif()
  list(GET torch_candidates 0 QD_TORCH_DIR)
endif()
if(NOT EXISTS ${QD_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "${QD_TORCH_DIR}/lib/libtorch_cpu.so is missing: run `make setup` again")
endif()
file(STRINGS ${QD_TORCH_DIR}/version.py torch_version_line REGEX "^__version__")
string(REGEX MATCH "[0-9][^']*" QD_TORCH_VERSION "${torch_version_line}")
message(STATUS "libtorch ${QD_TORCH_VERSION} in ${QD_TORCH_DIR}")

# The wheel also brings the headers of a newer fmt, without its library, and a system folder cannot be put in
# front of it (the compiler drops repeated /usr/include). So the fmt we link is reached through a folder of ours.
find_path(QD_FMT_INCLUDE fmt/format.h REQUIRED)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK ${QD_FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)

add_library(quadrille_torch INTERFACE)
add_library(quadrille::torch ALIAS quadrille_torch)
target_include_directories(quadrille_torch SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include
  ${QD_TORCH_DIR}/include ${QD_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_options(quadrille_torch INTERFACE -fopenmp)
# Without it some headers (ATen/TensorOperators.h, those of autograd) include every operator: 4 s a file.
target_compile_definitions(quadrille_torch INTERFACE AT_PER_OPERATOR_HEADERS)
file(GLOB torch_gomp ${QD_TORCH_DIR}/lib/libgomp*.so* ${QD_TORCH_DIR}/../torch.libs/libgomp*.so*)
if(torch_gomp)
  list(GET torch_gomp 0 torch_gomp)
else()
  set(torch_gomp gomp)
endif()
target_link_libraries(quadrille_torch INTERFACE
  ${QD_TORCH_DIR}/lib/libtorch_cpu.so ${QD_TORCH_DIR}/lib/libc10.so ${torch_gomp})
target_link_options(quadrille_torch INTERFACE -Wl,-rpath,${QD_TORCH_DIR}/lib)
