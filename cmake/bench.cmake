# `ninja bodies`: the fast bodies beside what the machine allows (bench/bodies.c); not part of the ordinary build.
add_executable(bodies EXCLUDE_FROM_ALL bench/bodies.c ${objects_up_to_cpu})
target_include_directories(bodies PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(bodies PRIVATE mpk_libraries)

# `ninja launches`: what a launch costs the host, call by call of the driver (bench/launches.c).
add_executable(launches EXCLUDE_FROM_ALL bench/launches.c ${objects_up_to_cuda})
target_include_directories(launches PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(launches PRIVATE mpk_libraries)
