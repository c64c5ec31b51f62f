# The Debian package: cpack -G DEB in a build folder, or ./dev package.  Everything that cmake --install puts into a
# prefix, under /usr; what it depends on dpkg-shlibdeps finds out from the libraries that the programs name.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME mpk)
if(NOT CPACK_PACKAGE_CONTACT) # who distributes it says -DCPACK_PACKAGE_CONTACT="NAME <ADDRESS>"
  set(CPACK_PACKAGE_CONTACT "the authors of mpk <mpk@localhost>")
endif()
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION "The command mpk, the library libmpk with its headers, and configurations of models.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "graphviz")
set(CPACK_COMPONENTS_ALL Unspecified)
include(CPack)
