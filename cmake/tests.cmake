# Unit tests stand beside their source as NAME_test.c and link the rooms up to their own; tests that span rooms stand in
# tests/*.c and link everything.  A fuzzer NAME_fuzz.c is also a test: it replays its corpus tests/corpus/NAME.
#
# A test that takes long says so in a line "/* ctest: slow */": the sanitizer runs of ./dev check leave it out, and the
# others begin with it, so that the processors end together.
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
set(MPK_TEST_ENVIRONMENT "MPK_BUILD=${CMAKE_BINARY_DIR}" "MPK_DEVICE=cpu" "ASAN_OPTIONS=allocator_may_return_null=1"
    "TSAN_OPTIONS=allocator_may_return_null=1"
    "UBSAN_OPTIONS=print_stacktrace=1")

# Where there is gold, it links the tests: in half the time of ld.
include(CheckLinkerFlag)
check_linker_flag(C -fuse-ld=gold MPK_GOLD)
if(MPK_GOLD)
  add_link_options(-fuse-ld=gold)
endif()

# A stand-in for libcuda, which tests have opened in its place (tests/fake_cuda.h).
add_library(fake_cuda MODULE tests/fake_cuda.c tests/fake_cuda_books.c tests/fake_cuda_shared.c
            tests/fake_cuda_streams.c)
set_target_properties(fake_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(fake_cuda PRIVATE mpk_libraries)

# With sanitizers a program of all rooms has 46 MB, which takes as long to link as its test to compile: there the tests
# share a library.  That a test needs no room above its own, other builds check.
if(MPK_SANITIZE AND NOT MPK_FUZZ)
  add_library(mpk_rooms SHARED ${room_objects})
  target_link_libraries(mpk_rooms PUBLIC mpk_libraries)
  target_link_options(mpk_rooms PRIVATE -Wl,-Bsymbolic-functions)
  link_libraries(mpk_rooms)
  set(room_objects "")
  foreach(room ${rooms_so_far})
    set(objects_up_to_${room} "")
  endforeach()
endif()

function(mpk_test file objects)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file} ${objects})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
                             ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE mpk_libraries PkgConfig::CMOCKA)
  if(MPK_SANITIZE AND NOT file MATCHES "${MPK_HOT}")
    target_compile_options(${name} PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release") # the library is what has to be fast
    target_compile_options(${name} PRIVATE -O1)
  endif()
  add_dependencies(${name} fake_cuda)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  file(STRINGS ${file} slow REGEX "^/\\* ctest: slow \\*/$")
  set(labels binary)
  if(slow)
    list(APPEND labels slow)
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 1500 ENVIRONMENT "${MPK_TEST_ENVIRONMENT}" LABELS "${labels}"
                       SKIP_RETURN_CODE 77) # CHECK_SKIPPED of tests/check.h
endfunction()

# Grammars for tests/test_grammar.py.
add_executable(grammar_probe tests/grammar_probe.c ${objects_up_to_grammar})
set_target_properties(grammar_probe PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_include_directories(grammar_probe PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(grammar_probe PRIVATE mpk_libraries)

# The server sees the public headers alone, so that a test of it may bring an engine of its own.
if(TARGET mpk_net)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/net/*_test.c)
  foreach(test ${tests})
    file(STRINGS ${test} own_engine REGEX "^/\\* ctest: brings its own engine \\*/$")
    if(own_engine)
      mpk_test(${test} "$<TARGET_OBJECTS:mpk_net>;${objects_up_to_base}")
    else()
      mpk_test(${test} "$<TARGET_OBJECTS:mpk_net>;${room_objects}")
    endif()
    get_filename_component(name ${test} NAME_WE)
    target_link_libraries(${name} PRIVATE PkgConfig::MICROHTTPD)
  endforeach()
endif()
foreach(room ${rooms_so_far})
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${room}/*_test.c)
  foreach(test ${tests})
    mpk_test(${test} "${objects_up_to_${room}}")
  endforeach()
endforeach()
file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*_test.c)
foreach(test ${tests})
  file(STRINGS ${test} of_server REGEX "^#include \"net/")
  if(NOT of_server)
    mpk_test(${test} "${room_objects}")
  elseif(TARGET mpk_net)
    mpk_test(${test} "$<TARGET_OBJECTS:mpk_net>;${room_objects}")
    get_filename_component(name ${test} NAME_WE)
    target_link_libraries(${name} PRIVATE PkgConfig::MICROHTTPD)
  endif()
endforeach()

add_custom_target(fuzzers)
file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*/*_fuzz.c)
foreach(fuzzer ${fuzzers})
  get_filename_component(name ${fuzzer} NAME_WE)
  string(REPLACE "_fuzz" "" subject ${name})
  set(objects ${room_objects})
  set(libraries mpk_libraries)
  if(fuzzer MATCHES "/src/net/")
    list(APPEND objects $<TARGET_OBJECTS:mpk_net>)
    list(APPEND libraries PkgConfig::MICROHTTPD)
  endif()
  if(MPK_FUZZ)
    add_executable(${name} ${fuzzer} ${objects})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers ${name})
  else()
    add_executable(${name} ${fuzzer} ${CMAKE_SOURCE_DIR}/tests/fuzz_replay.c ${objects})
    add_test(NAME ${name} COMMAND ${name} ${CMAKE_SOURCE_DIR}/tests/corpus/${subject})
    set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "${MPK_TEST_ENVIRONMENT}" LABELS fuzz)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${libraries})
endforeach()

# Tests written in Python or shell: tests/test_NAME.py with pytest is run by ./dev check; tests/NAME.sh here.
file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*.sh)
foreach(script ${scripts})
  get_filename_component(name ${script} NAME_WE)
  add_test(NAME ${name} COMMAND bash ${script} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "${MPK_TEST_ENVIRONMENT}" LABELS script)
endforeach()
