package prefixhash

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"

	"github.com/millrace/millrace/internal/repotest"
)

// vectorFile is testdata/vectors.json.
type vectorFile struct {
	About   string   `json:"about"`
	Vectors []vector `json:"vectors"`
}

type vector struct {
	Name    string          `json:"name"`
	Request json.RawMessage `json:"request"` // a millrace.v1.GenerateRequest
	Total   int             `json:"canonical_bytes"`
	Keys    []vectorKey     `json:"keys"`
}

type vectorKey struct {
	Bytes int    `json:"bytes"`
	Key   string `json:"key"` // 16 hexadecimal digits
}

func TestKeysMatchTheVectors(t *testing.T) {
	const path = "testdata/vectors.json"
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var file vectorFile
	require.NoError(t, json.Unmarshal(raw, &file))
	require.NotEmpty(t, file.Vectors)
	for i := range file.Vectors {
		v := &file.Vectors[i]
		in := &pb.GenerateRequest{}
		require.NoError(t, protojson.Unmarshal(v.Request, in), v.Name)
		prefixes, total := Of(in)
		keys := []vectorKey{}
		for _, p := range prefixes {
			keys = append(keys, vectorKey{p.Bytes, fmt.Sprintf("%016x", p.Key)})
		}
		if *repotest.Update {
			v.Total, v.Keys = total, keys
			continue
		}
		require.Equal(t, v.Total, total, v.Name)
		require.Equal(t, v.Keys, keys, v.Name)
	}
	if *repotest.Update {
		raw, err := json.MarshalIndent(file, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append(raw, '\n'), 0o600))
	}
}

// TestKeysMatchTheDocument compares with all canonical bytes in one piece and a hash written from
// its description.
func TestKeysMatchTheDocument(t *testing.T) {
	require.Equal(t, uint64(0xef46db3751d8e999), slowXXH64(nil, 0), "the published value of the empty input")
	random := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, 255, 256, 257, 511, 512, 513, 63 * 256, 64*256 - 1, 64 * 256, 65 * 256, 66 * 256, 128*256 + 3, 300 * 256}
	for _, size := range sizes {
		for _, salt := range []string{"", "s", strings.Repeat("salt", 32)} {
			for _, in := range requests(random, size) {
				in.Cache = &pb.CacheOptions{Salt: &salt}
				got, total := Of(in)
				raw, kind := canonical(in)
				require.Len(t, raw, total)
				state, want := slowXXH64([]byte(salt), kind), []Prefix(nil)
				for n := 1; n*256 <= len(raw); n++ {
					state = slowXXH64(raw[(n-1)*256:n*256], state)
					if n < 64 || n < 128 && n%2 == 0 || n < 256 && n%4 == 0 || n >= 256 && n%8 == 0 {
						want = append(want, Prefix{state, n * 256})
					}
				}
				require.Equal(t, want, got, "%d bytes", total)
			}
		}
	}
}

// requests returns one request of each kind with about size canonical bytes, in pieces of random
// sizes.
func requests(random *rand.Rand, size int) []*pb.GenerateRequest {
	text := make([]byte, size)
	for i := range text {
		text[i] = byte('a' + random.IntN(26))
	}
	ids := make([]uint32, size/4)
	for i := range ids {
		ids[i] = random.Uint32()
	}
	chat := &pb.Chat{}
	for rest := string(text); len(rest) > 0; {
		role, content := random.IntN(min(20, len(rest))+1), random.IntN(min(1000, len(rest))+1)
		content = min(content, len(rest)-min(role, len(rest)))
		chat.Messages = append(chat.Messages, &pb.ChatMessage{Role: rest[:role], Content: rest[role : role+content]})
		rest = rest[max(role+content, 1):]
	}
	return []*pb.GenerateRequest{
		{Input: &pb.GenerateRequest_Prompt{Prompt: string(text)}},
		{Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}},
		{Input: &pb.GenerateRequest_Chat{Chat: chat}},
	}
}

func canonical(in *pb.GenerateRequest) (raw []byte, kind uint64) {
	switch input := in.GetInput().(type) {
	case *pb.GenerateRequest_Prompt:
		return []byte(input.Prompt), 1
	case *pb.GenerateRequest_TokenIds:
		for _, id := range input.TokenIds.GetIds() {
			raw = append(raw, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
		}
		return raw, 2
	case *pb.GenerateRequest_Chat:
		for _, m := range input.Chat.GetMessages() {
			raw = append(raw, m.GetRole()+"\x1f"+m.GetContent()+"\x1e"...)
		}
	}
	return raw, 3
}

func TestCommonPrefixesShareKeys(t *testing.T) {
	common := strings.Repeat("You are a helpful assistant. ", 40) // 1160 bytes
	one, _ := Of(prompt(common + strings.Repeat("a", 600)))
	other, _ := Of(prompt(common + strings.Repeat("b", 900)))
	require.Equal(t, one[:4], other[:4])
	require.Equal(t, 1024, one[3].Bytes)
	require.NotEqual(t, one[4].Key, other[4].Key)
}

func TestKeysDifferBySaltAndInputKind(t *testing.T) {
	text := strings.Repeat("\x01\x00\x00\x00", 64)
	ids := &pb.GenerateRequest{Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: make([]uint32, 64)}}}
	for i := range ids.GetTokenIds().GetIds() {
		ids.GetTokenIds().Ids[i] = 1
	}
	salted := prompt(text)
	salted.Cache = &pb.CacheOptions{Salt: proto.String("mine")}
	seen := map[uint64]bool{}
	for _, in := range []*pb.GenerateRequest{prompt(text), ids, salted} {
		prefixes, _ := Of(in)
		require.Len(t, prefixes, 1)
		require.False(t, seen[prefixes[0].Key])
		seen[prefixes[0].Key] = true
	}
}

func TestBypassHasNoKeys(t *testing.T) {
	in := prompt(strings.Repeat("x", 1000))
	in.Cache = &pb.CacheOptions{BypassPrefixCache: proto.Bool(true)}
	prefixes, total := Of(in)
	require.Empty(t, prefixes)
	require.Equal(t, 1000, total)
	prefixes, total = Of(&pb.GenerateRequest{})
	require.Empty(t, prefixes)
	require.Zero(t, total)
}

func TestTokensOfAPrefix(t *testing.T) {
	for name, tc := range map[string]struct{ bytes, total, tokens, want int }{
		"token ids are counted exactly":    {256, 4 * 100, 100, 64},
		"text is shared out, rounded down": {256, 1000, 299, 76},
		"all of it is all":                 {512, 512, 77, 77},
		"no bytes are no tokens":           {0, 0, 5, 0},
		"a long one does not overflow":     {1 << 31, 1 << 32, 1 << 31, 1 << 30},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, Prefix{Bytes: tc.bytes}.Tokens(tc.total, tc.tokens)) })
	}
}

func TestLongRequestHasFewKeys(t *testing.T) {
	keys, last := 0, 0
	for n := 1; n <= 16<<20/chunkBytes; n++ {
		if hasKey(n) {
			require.LessOrEqual(t, (n-last-1)*32, n, "at most a part in 32 is lost between %d and %d chunks", last, n)
			keys, last = keys+1, n
		}
	}
	require.Equal(t, 384, keys)
}

func BenchmarkOf(b *testing.B) {
	in := prompt(strings.Repeat("0123456789abcdef", 4<<20/16))
	b.SetBytes(4 << 20)
	for b.Loop() {
		Of(in)
	}
}

func prompt(text string) *pb.GenerateRequest {
	return &pb.GenerateRequest{Input: &pb.GenerateRequest_Prompt{Prompt: text}}
}

// slowXXH64 is XXH64 as its specification describes it.
func slowXXH64(in []byte, seed uint64) uint64 {
	const p1, p2, p3, p4, p5 = 11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261
	round := func(acc, lane uint64) uint64 { return bits.RotateLeft64(acc+lane*p2, 31) * p1 }
	rest, sum := in, seed+p5
	if len(in) >= 32 {
		acc := [4]uint64{seed, seed, seed, seed}
		for i, add := range []uint64{p1, p2, 0, p1} {
			if i == 0 {
				acc[i] += p2
			}
			if i == 3 {
				acc[i] -= add
				continue
			}
			acc[i] += add
		}
		for ; len(rest) >= 32; rest = rest[32:] {
			for i := range acc {
				acc[i] = round(acc[i], binary.LittleEndian.Uint64(rest[8*i:]))
			}
		}
		sum = 0
		for i, by := range []int{1, 7, 12, 18} {
			sum += bits.RotateLeft64(acc[i], by)
		}
		for _, a := range acc {
			sum = (sum^round(0, a))*p1 + p4
		}
	}
	sum += uint64(len(in))
	for ; len(rest) >= 8; rest = rest[8:] {
		sum = bits.RotateLeft64(sum^round(0, binary.LittleEndian.Uint64(rest)), 27)*p1 + p4
	}
	if len(rest) >= 4 {
		sum = bits.RotateLeft64(sum^uint64(binary.LittleEndian.Uint32(rest))*p1, 23)*p2 + p3
		rest = rest[4:]
	}
	for _, b := range rest {
		sum = bits.RotateLeft64(sum^uint64(b)*p5, 11) * p1
	}
	sum = (sum ^ sum>>33) * p2
	sum = (sum ^ sum>>29) * p3
	return sum ^ sum>>32
}
