// Package auth is who may do what on a server: a file of keys, the right that each method needs, and what a key may use.
//
// A program puts Flags on its flag set and asks Check about them. Serve then stands a Guard before every method of an
// rpc.ServerConfig; without --auth-keys there is none, and everybody may do everything. A call shows its token; the Guard finds the key
// by the token's hash, asks whether the key may call the method and has something left of its quotas, and gives a generation its
// tenant. What the call uses is told to the key by its Meter. Dialer makes a client show its own token.
//
// The file is read again while the process runs. What a new one no longer allows is refused at once and ends where it is under way: a
// Guard with calls looks once a second.
//
// Keys, their rights and their quotas are values without a clock, a file or a socket: keys.go, methods.go, quota.go. The package
// knows the contract, and neither a scheduler nor a worker.
package auth
