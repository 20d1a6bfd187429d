package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// No worker of this release lists a name twice. One that does must not fill the index of all others with what nobody takes out.
func TestAModelThatIsListedTwiceLeavesNothingInTheIndex(t *testing.T) {
	twice := &pb.WorkerReport{Models: []*pb.ModelStatus{{Name: "m", ModelDigest: "d1"}, {Name: "m", ModelDigest: "d2"}}}
	all := &route.Indexes{}
	p := prefixes(nil).listed(twice, all)
	for _, digest := range []string{"d2", "d1", "d2"} {
		p, _ = p.told(&pb.PrefixKeys{Model: "m", ModelDigest: digest, Added: []uint64{1, 2, 3}}, twice, all)
		p = p.listed(twice, all)
		require.EqualValues(t, 3, all.Len(), "the digest that was told last")
		require.Equal(t, 3, p.of("m", digest).Len())
	}
	p.drop()
	require.Zero(t, all.Len())
}
