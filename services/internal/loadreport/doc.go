// Package loadreport tells balancers how much a server has to do, in the words of ORCA: in the trailer of each generation, and by a
// stream of its own.
//
// A Reporter asks its server what there is to do when somebody wants to know, a few times a second at most, and counts generations
// itself. Options and Register put it on a server; End is called by each generation when it ends.
//
// It knows nothing of models and workers: what a report says of them, its server says.
package loadreport
