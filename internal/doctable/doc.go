// Package doctable keeps tables of docs/ true: a test gives the rows that the program knows, and the page must have them, to the
// letter. The flag -update of the test writes them.
package doctable
