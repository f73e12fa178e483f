package sink

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
)

// Retention is how long a topic keeps records by their timestamp; limited is false where it keeps
// them whatever their age.
func (p *Producer) Retention(ctx context.Context, topic string) (keeps time.Duration, limited bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	m, err := p.cluster.RoundTrip(ctx, nil, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{
		{ResourceType: resourceTopic, ResourceName: topic, ConfigNames: []string{"retention.ms", "cleanup.policy"}},
	}})
	if err != nil {
		return 0, false, fmt.Errorf("sink: read the retention of %s: %w", topic, err)
	}
	ms, deletes := int64(-1), false
	for _, r := range m.(*describeconfigs.Response).Resources {
		if r.ErrorCode != 0 {
			return 0, false, fmt.Errorf("sink: read the retention of %s: %w", topic, kafka.Error(r.ErrorCode))
		}
		for _, e := range r.ConfigEntries {
			switch e.ConfigName {
			case "retention.ms":
				if ms, err = strconv.ParseInt(e.ConfigValue, 10, 64); err != nil {
					return 0, false, fmt.Errorf("sink: read the retention of %s: %w", topic, err)
				}
			case "cleanup.policy":
				deletes = strings.Contains(e.ConfigValue, "delete")
			}
		}
	}
	if ms < 0 || !deletes || ms > int64(1<<63-1)/int64(time.Millisecond) {
		return 0, false, nil
	}
	return time.Duration(ms) * time.Millisecond, true, nil
}
