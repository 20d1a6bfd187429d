// Package machine says where a measurement was made: processor, cores, load, versions, date. A figure without them is
// of no use later.
package machine
