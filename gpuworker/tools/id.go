package tools

import (
	"encoding/base32"
	"fmt"
	"strings"

	"lukechampine.com/blake3"
)

// CallID returns the id of a call. It follows from what identifies the stream, so that a worker that continues it gives
// the same id: the digest of the prompt, the seed, the output and the index of the call.
func (f Format) CallID(promptDigest string, seed uint64, output, call int) string {
	sum := blake3.Sum256(fmt.Appendf(nil, "millrace call v1\x00%s\x00%d\x00%d\x00%d", promptDigest, seed, output, call))
	text := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))
	if f.shortIDs() {
		return text[:shortID]
	}
	return "call_" + text[:24]
}

// shortID is the length of the ids that Mistral's templates accept.
const shortID = 9

func (f Format) shortIDs() bool { return f.family == mistralFamily || f.family == mistralJSONFamily }

// PromptID returns the id of an earlier call as the template of the format accepts it.
func (f Format) PromptID(id string) string {
	if !f.shortIDs() || len(id) == shortID && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return id
	}
	sum := blake3.Sum256([]byte(id))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:shortID]
}
