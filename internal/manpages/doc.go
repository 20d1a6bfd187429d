// Package manpages renders the manual pages of a program from its commands and their flags. A test
// of each program calls Check, which renders every page. With the flag -manpages DIR the test also
// writes the pages; deploy/release.sh uses that flag, so that no program carries a command for its
// own manual.
package manpages
