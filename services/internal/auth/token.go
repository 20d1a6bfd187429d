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
	// tokenPrefix lets those who look for secrets in the wrong places find ours.
	tokenPrefix = "millrace_"
	// tokenBytes are random: nobody guesses them, so that a fast hash without a salt keeps them. A slow one protects what people
	// think up, and costs every call what it costs a guesser.
	tokenBytes = 32
	// minToken is the length of 32 random bytes at their shortest in use; what people think up is rarely as long.
	minToken = 32
	maxToken = 4 << 10
	// hashPrefix begins a hash in the file of keys.
	hashPrefix = "sha256:"
)

// errToken: a text is no token.
var errToken = fmt.Errorf("want %d to %d printable ASCII characters without spaces", minToken, maxToken)

// Hash is the SHA-256 of a token, which is all that a server knows of it.
type Hash [sha256.Size]byte

// NewToken makes a random token.
func NewToken() string {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// HashOf is the hash of a token.
func HashOf(token string) Hash { return sha256.Sum256([]byte(token)) }

// String is how a file of keys has it.
func (h Hash) String() string { return hashPrefix + hex.EncodeToString(h[:]) }

// parseHash reads what String writes.
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

// checkToken refuses what is no token. Its error does not quote it.
func checkToken(text string) error {
	if len(text) < minToken || len(text) > maxToken || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return errToken
	}
	return nil
}
