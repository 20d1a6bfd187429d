// Package auth authorises calls: a file of keys, the right that each method needs, and quotas.
//
// A program adds Flags to its flag set and calls Check. Serve puts a Guard in front of every method
// of an rpc.ServerConfig. Without --auth-keys there is no Guard, and every call is allowed. A call
// sends its token. The Guard finds the key by the token's hash, checks that the key has the right
// that the method needs and has quota left, and sets the tenant of a generation. The call's Meter
// counts what it uses. Dialer makes a client send its own token.
//
// The file is read again while the process runs. A Guard with running calls checks them once a
// second: a call whose key was revoked or has lost its right ends.
//
// Keys, rights and quotas are values without clock, file or socket: keys.go, methods.go, quota.go.
// The package knows the contract, but no scheduler and no worker.
package auth
