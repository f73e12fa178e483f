//go:build msk

package sink

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/aws_msk_iam_v2"
)

// This file and the AWS SDK behind it are linked only by `make build-msk`: its
// modules stand in sink/msk.mod, so that the ordinary build need not even know them.

func init() { mskIAM = awsCredentials }

// awsCredentials signs with what the SDK's default chain finds now: environment,
// shared files, web identity, container or instance role.
func awsCredentials(ctx context.Context) (sasl.Mechanism, error) {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, err
	}
	return aws_msk_iam_v2.NewMechanism(cfg), nil
}
