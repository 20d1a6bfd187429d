package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

func TestModelListedTwiceLeavesNoPrefixes(t *testing.T) {
	// No worker of this release lists a name twice. One that does must not leave keys in the shared
	// index.
	twice := &pb.WorkerReport{Models: []*pb.ModelStatus{{Name: "m", ModelDigest: "d1"}, {Name: "m", ModelDigest: "d2"}}}
	all := &route.Indexes{}
	p := prefixes(nil).retain(twice, all)
	for _, digest := range []string{"d2", "d1", "d2"} {
		p, _ = p.apply(&pb.PrefixKeys{Model: "m", ModelDigest: digest, Added: []uint64{1, 2, 3}}, twice, all)
		p = p.retain(twice, all)
		require.EqualValues(t, 3, all.Len(), "the digest that was reported last")
		require.Equal(t, 3, p.of("m", digest).Len())
	}
	p.drop()
	require.Zero(t, all.Len())
}
