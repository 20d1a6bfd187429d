// Package transport is how the three programs protect their connections: the flags that name certificates, and what a server
// and a connection are made with.
//
// A program puts Flags on its flag set, asks CheckListen and CheckDial about the addresses that it was given, and Check about the
// files. Serve then gives an rpc.ServerConfig its credentials and its rule of who may call; Dialer makes the credentials of
// connections, both of them once a process. Files are read again while the process runs, at most once a second and only when a
// connection is made: what was rotated holds for connections made from then on, and those that stand are left alone. Without
// certificates both are plaintext, which CheckListen and CheckDial keep on this machine unless --insecure was given.
//
// TLS 1.3 is the only version. The package knows no service, no worker and no scheduler, and reads no environment.
package transport
