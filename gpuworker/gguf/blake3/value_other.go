//go:build !amd64

package blake3

// value is the subtree of at most Best bytes.
func value(data []byte, chunk uint64) [8]uint32 { return portable(data, chunk) }
