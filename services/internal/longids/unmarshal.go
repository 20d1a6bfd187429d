package longids

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// long is how many bytes a request has whose token ids are read apart.
const long = 4 << 10

// Fields of a GenerateRequest.
var (
	tokenIDsField = (&pb.GenerateRequest{}).ProtoReflect().Descriptor().Fields().ByName("token_ids")
	idsNumber     = (&pb.TokenIds{}).ProtoReflect().Descriptor().Fields().ByName("ids").Number()
)

// Unmarshal is proto.Unmarshal, to the letter.
func Unmarshal(raw []byte, m proto.Message) error {
	in, ok := m.(*pb.GenerateRequest)
	if !ok || len(raw) < long {
		return proto.Unmarshal(raw, m)
	}
	begin, end, list, alone := findIDs(raw)
	if !alone {
		return proto.Unmarshal(raw, m)
	}
	ids, ok := readIDs(list)
	if !ok {
		return proto.Unmarshal(raw, m)
	}
	if err := proto.Unmarshal(slices.Concat(raw[:begin], raw[end:]), in); err != nil {
		return err
	}
	in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}
	return nil
}

// findIDs finds the field token_ids of a request, from begin to end, and in it its list as it is packed. It is alone if there is no
// other input, and nothing but one list in it; what is not is left to protobuf.
func findIDs(raw []byte) (begin, end int, list []byte, alone bool) {
	input := tokenIDsField.ContainingOneof().Fields()
	for at := 0; at < len(raw); {
		number, kind, tag := protowire.ConsumeTag(raw[at:])
		if tag < 0 {
			return 0, 0, nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[at+tag:])
		if size < 0 {
			return 0, 0, nil, false
		}
		next := at + tag + size
		if input.ByNumber(number) != nil {
			if alone || number != tokenIDsField.Number() || kind != protowire.BytesType {
				return 0, 0, nil, false
			}
			body, _ := protowire.ConsumeBytes(raw[at+tag:])
			if list, alone = onlyList(body, idsNumber); !alone {
				return 0, 0, nil, false
			}
			begin, end = at, next
		}
		at = next
	}
	return begin, end, list, alone
}

// onlyList is the packed list of a message that holds nothing else.
func onlyList(body []byte, number protoreflect.FieldNumber) (list []byte, ok bool) {
	is, kind, tag := protowire.ConsumeTag(body)
	if tag < 0 || is != number || kind != protowire.BytesType {
		return nil, false
	}
	list, size := protowire.ConsumeBytes(body[tag:])
	return list, size == len(body)-tag
}

// readIDs reads packed varints, two at once from eight bytes where both have up to four. False: there is one that is no id.
func readIDs(list []byte) (ids []uint32, ok bool) {
	const last = 0x8080808080808080 // of each byte: it is the last of its varint if the bit is not set
	count, at := 0, 0
	for ; at+8 <= len(list); at += 8 {
		count += bits.OnesCount64(^binary.LittleEndian.Uint64(list[at:]) & last)
	}
	ids = make([]uint32, count+len(list)-at)
	count, at = 0, 0
	for at < len(list) {
		if len(list)-at >= 8 {
			word := binary.LittleEndian.Uint64(list[at:])
			ends := ^word & last
			second := ends & (ends - 1)
			first := ends ^ (ends - 1) // the bits of the first varint
			both := second ^ (second - 1)
			behind := word & both &^ first >> ((bits.TrailingZeros64(ends) + 1) & 63)
			if second != 0 && uint32(ends) != 0 && behind <= math.MaxUint32 {
				ids[count], ids[count+1] = group(word&first), group(behind)
				count, at = count+2, at+(bits.TrailingZeros64(second)+1)/8
				continue
			}
		}
		v, n := protowire.ConsumeVarint(list[at:])
		if n < 0 || v > math.MaxUint32 {
			return nil, false
		}
		ids[count] = uint32(v)
		count, at = count+1, at+n
	}
	return ids[:count], true
}

// group is the value of a varint of up to four bytes.
func group(v uint64) uint32 { return uint32(v&0x7f | v>>1&0x3f80 | v>>2&0x1fc000 | v>>3&0xfe00000) }
