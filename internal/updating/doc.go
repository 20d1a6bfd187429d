// Package updating is the flag -update of tests, for the packages that compare files of the tree with what programs say: one test
// program may have several of them, and a flag is defined once.
package updating

import "flag"

// Wanted is whether files are to be written anew instead of compared.
var Wanted = flag.Bool("update", false, "write the files anew that are compared")
