# `ninja bodies`: the fast bodies beside what the machine allows (bench/bodies.c); not part of the ordinary build.
add_executable(bodies EXCLUDE_FROM_ALL bench/bodies.c ${objects_up_to_cpu})
target_include_directories(bodies PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(bodies PRIVATE mpk_libraries)
