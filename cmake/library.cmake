# libmpk.so, libmpk.a (one relocatable object whose hidden symbols are made local), the command, and their install.
include(GNUInstallDirs)

add_library(mpk_shared SHARED ${room_objects})
set_target_properties(mpk_shared PROPERTIES OUTPUT_NAME mpk VERSION ${PROJECT_VERSION} SOVERSION 0)
target_include_directories(mpk_shared PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(mpk_shared PRIVATE mpk_libraries)

add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/libmpk.a
  COMMAND ${CMAKE_LINKER} -r -o ${CMAKE_BINARY_DIR}/libmpk.o ${room_objects}
  COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${CMAKE_BINARY_DIR}/libmpk.o
  COMMAND ${CMAKE_COMMAND} -E rm -f ${CMAKE_BINARY_DIR}/libmpk.a
  COMMAND ${CMAKE_AR} rcs ${CMAKE_BINARY_DIR}/libmpk.a ${CMAKE_BINARY_DIR}/libmpk.o
  DEPENDS ${room_objects}
  COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(mpk_archive ALL DEPENDS ${CMAKE_BINARY_DIR}/libmpk.a)

# The command and its server see the public headers and the base room; they take the library whole so that the command
# runs from anywhere.  Only the server wants libmicrohttpd, so that the library and the wheel do without.
if(NOT MPK_PYTHON)
  pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd>=0.9.75)
  file(GLOB net_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/net/*.c)
  list(FILTER net_sources EXCLUDE REGEX "_(test|fuzz)\\.c$")
  set(page ${CMAKE_BINARY_DIR}/generated/net_page_text.c)
  add_custom_command(
    OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${CMAKE_SOURCE_DIR}/src/net/page.html -DOUTPUT=${page}
            -P ${CMAKE_SOURCE_DIR}/cmake/page.cmake
    DEPENDS ${CMAKE_SOURCE_DIR}/src/net/page.html ${CMAKE_SOURCE_DIR}/cmake/page.cmake
    VERBATIM)
  add_library(mpk_net OBJECT ${net_sources} ${page})
  target_include_directories(mpk_net PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(mpk_net PUBLIC mpk_libraries PkgConfig::MICROHTTPD)
  file(GLOB cli_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.c)
  add_executable(mpk ${cli_sources} $<TARGET_OBJECTS:mpk_net> ${room_objects})
  target_include_directories(mpk PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(mpk PRIVATE mpk_libraries PkgConfig::MICROHTTPD)
  install(TARGETS mpk RUNTIME)
endif()

# mpk.pc finds the prefix from where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH MPK_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" MPK_PC_TO_PREFIX "${MPK_PC_TO_PREFIX}")
configure_file(cmake/mpk.pc.in mpk.pc @ONLY)
install(TARGETS mpk_shared LIBRARY)
install(FILES ${CMAKE_BINARY_DIR}/libmpk.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/mpk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mpk/models)
install(FILES ${CMAKE_BINARY_DIR}/mpk.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The wheel (pyproject.toml) holds one file of the library, beside the Python sources.
if(MPK_PYTHON)
  target_link_options(mpk_shared PRIVATE -s) # installed as a file, which cmake --install does not strip
  install(FILES $<TARGET_FILE:mpk_shared> DESTINATION mpk RENAME libmpk.so COMPONENT python)
endif()
