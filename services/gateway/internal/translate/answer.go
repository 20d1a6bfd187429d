package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Origin is the field millrace of answers: where the tokens come from, and what repeats them.
type Origin struct {
	ClassID      string      `json:"class_id"`
	ModelDigest  string      `json:"model_digest"`
	PromptDigest string      `json:"prompt_digest"`
	Seed         json.Number `json:"seed"`
	CachedTokens uint32      `json:"cached_tokens"`
	WorkerID     string      `json:"worker_id"`
	// GuidedIgnored are the keywords of a schema that were not honoured.
	GuidedIgnored []string `json:"guided_ignored,omitempty"`
	// Exact is false if the stream continued in another class, whose tokens may differ.
	Exact *bool `json:"exact,omitempty"`
}

// OriginOf returns the origin of a generation with the given seed.
func OriginOf(s *pb.Started, used *Seed) *Origin {
	return &Origin{
		ClassID: s.GetClassId(), ModelDigest: s.GetModelDigest(), PromptDigest: s.GetPromptDigest(), Seed: json.Number(used.Text),
		CachedTokens: s.GetCachedTokens(), WorkerID: s.GetWorkerId(), Exact: s.Exact, GuidedIgnored: s.GetGuidedIgnored(),
	}
}

// Fingerprint returns OpenAI's system_fingerprint: equal ones, requests and seeds give equal tokens.
func Fingerprint(s *pb.Started) string {
	sum := sha256.Sum256([]byte(s.GetClassId() + "\x00" + s.GetModelDigest()))
	return "fp_" + hex.EncodeToString(sum[:8])
}
