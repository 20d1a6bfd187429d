// Package doctable compares tables in docs/ with the rows that the code produces. A test passes the
// rows, and the page must contain them exactly. With -update the test writes them.
package doctable
