# Sets MILLRACE_SOURCE_DIGEST, the digest of the sources that the CUDA engine is built from. `cmake -P sources.cmake` prints it.
# cuda/sources.go computes the same digest from the embedded sources: a test compares the two, so both lists must agree.
file(GLOB_RECURSE digest_inputs RELATIVE ${CMAKE_CURRENT_LIST_DIR} LIST_DIRECTORIES false
  ${CMAKE_CURRENT_LIST_DIR}/include/*.h
  ${CMAKE_CURRENT_LIST_DIR}/src/*.h ${CMAKE_CURRENT_LIST_DIR}/src/*.cpp ${CMAKE_CURRENT_LIST_DIR}/src/*.cu
  ${CMAKE_CURRENT_LIST_DIR}/src/*.cuh ${CMAKE_CURRENT_LIST_DIR}/src/*.map
  ${CMAKE_CURRENT_LIST_DIR}/kernels/*.h ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cuh
  ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cpp ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cu ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cu.in)
file(GLOB shared_headers RELATIVE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/cpu/*.h)
# Host code that both engines share.
set(shared_sources cpu/error.cpp cpu/shape.cpp cpu/weights.cpp cpu/slot.cpp cpu/step_plan.cpp cpu/runner_config.cpp
  cpu/vector_config.cpp cpu/vector_math.cpp cpu/slices.cpp
  cpu/linear_size.cpp cpu/isa.cpp cpu/blake3.cpp cpu/blake3_x86.cpp)
list(APPEND digest_inputs CMakeLists.txt ${shared_headers} ${shared_sources})
list(SORT digest_inputs COMPARE STRING CASE SENSITIVE)
set(lines "")
foreach(input IN LISTS digest_inputs)
  file(SHA256 ${CMAKE_CURRENT_LIST_DIR}/${input} one)
  string(APPEND lines "${input} ${one}\n")
endforeach()
string(SHA256 MILLRACE_SOURCE_DIGEST "${lines}")
string(SUBSTRING ${MILLRACE_SOURCE_DIGEST} 0 16 MILLRACE_SOURCE_DIGEST)
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${MILLRACE_SOURCE_DIGEST})
endif()
