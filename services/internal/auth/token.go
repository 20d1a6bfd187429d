package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const (
	// tokenPrefix lets secret scanners find tokens.
	tokenPrefix = "millrace_"
	// tokenBytes is the number of random bytes of a token. They cannot be guessed, so a fast hash
	// without salt suffices. A slow hash protects passwords that people choose, but it costs every
	// call as much as it costs an attacker.
	tokenBytes = 32
	// minToken is the length of 32 random bytes in the shortest common encoding. Passwords are
	// rarely as long.
	minToken = 32
	maxToken = 4 << 10
	// hashPrefix begins a hash in the file of keys.
	hashPrefix = "sha256:"
)

// errToken reports a text that is not a token.
var errToken = fmt.Errorf("want %d to %d printable ASCII characters without spaces", minToken, maxToken)

// Hash is the SHA-256 of a token. A server knows only the hash.
type Hash [sha256.Size]byte

// NewToken returns a random token.
func NewToken() string {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// HashOf returns the hash of a token.
func HashOf(token string) Hash { return sha256.Sum256([]byte(token)) }

// String returns the form of a file of keys.
func (h Hash) String() string { return hashPrefix + hex.EncodeToString(h[:]) }

// parseHash parses what String returns.
func parseHash(text string) (h Hash, err error) {
	digits, ok := strings.CutPrefix(text, hashPrefix)
	if !ok || len(digits) != 2*len(h) {
		return h, errors.New("want sha256: and the 64 hex digits of the token's SHA-256")
	}
	if _, err := hex.Decode(h[:], []byte(digits)); err != nil {
		return h, errors.New("want sha256: and the 64 hex digits of the token's SHA-256")
	}
	return h, nil
}

// checkToken refuses a text that is not a token. Its error does not contain it.
func checkToken(text string) error {
	if len(text) < minToken || len(text) > maxToken || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return errToken
	}
	return nil
}
