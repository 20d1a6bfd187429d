// Package transport secures the connections of the three programs: the flags that name
// certificates, and the credentials of servers and clients.
//
// A program adds Flags to its flag set, validates its addresses with CheckListen and CheckDial, and
// its files with Check. Serve puts credentials, and the rule of which callers are allowed, into an
// rpc.ServerConfig. Dialer makes the credentials of clients. Each is called once in a process.
// Files are read again while the process runs, at most once a second and only when a connection is
// made. A rotated certificate applies to new connections; existing ones continue. Without
// certificates both sides use plaintext, which CheckListen and CheckDial allow on this machine only
// unless --insecure is set.
//
// TLS 1.3 is the only version. The package knows no service, worker or scheduler, and reads no
// environment.
package transport
