// Package session is the part of the command line that every command uses: streams, connections and
// deadlines, arguments, and answers as JSON.
//
// A Session is made by package cli and passed to the commands of other packages. It holds no
// connection; a command dials when it needs one.
package session
