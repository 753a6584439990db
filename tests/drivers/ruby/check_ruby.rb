# ruby-pg as it is, and Active Record on it: a1.. names that are deallocated by SQL, SETs at connect, the migration
# lock, cancel before rollback. TAG and PARTS: see ../python/common.py.
require 'pg'
require 'active_record'

TAG = ENV.fetch('TAG')
PARTS = ENV.fetch('PARTS', 'all')
TABLE = "t_#{TAG}"

def equal(got, wanted, what = '')
  raise "#{what}: got #{got.inspect} instead of #{wanted.inspect}" unless got == wanted
end

def fails(kind)
  yield
rescue kind => error
  error
else
  raise "no #{kind}"
end

def raw_shared
  conn = PG.connect(application_name: TAG, options: '-c TimeZone=Asia/Tokyo')
  conn.exec("SET client_min_messages = 'warning'")
  conn.exec("DROP TABLE IF EXISTS #{TABLE}")
  conn.exec("CREATE TABLE #{TABLE} (id int PRIMARY KEY, word text)")
  conn.prepare('insert', "INSERT INTO #{TABLE} VALUES ($1, $2)")
  conn.prepare('select', "SELECT word FROM #{TABLE} WHERE id = $1")
  conn.exec('SET synchronous_commit = local')
  60.times do |n|
    conn.exec_prepared('insert', [n, "#{TAG}-#{n}"])
    equal(conn.exec_prepared('select', [n]).getvalue(0, 0), "#{TAG}-#{n}", 'own write')
    equal(conn.exec('SHOW TimeZone').getvalue(0, 0), 'Asia/Tokyo', 'TimeZone')
  end
  conn.exec('RESET synchronous_commit')
  equal(conn.describe_prepared('select').fname(0), 'word')
  # Names come and go, by SQL.
  20.times do |n|
    conn.prepare("a#{n}", "SELECT $1::int + #{n}")
    equal(conn.exec_prepared("a#{n}", [1]).getvalue(0, 0), (n + 1).to_s)
    conn.exec("DEALLOCATE a#{n - 3}") if n >= 3
  end
  10.times do |n|
    fails(PG::UniqueViolation) do
      conn.transaction do
        conn.exec_params("UPDATE #{TABLE} SET word = 'x' WHERE id = $1", [n])
        conn.exec_prepared('insert', [n, 'again'])
      end
    end
    equal(conn.exec_prepared('select', [n]).getvalue(0, 0), "#{TAG}-#{n}", 'after the rollback')
  end
  # Pipeline mode.
  conn.enter_pipeline_mode
  30.times { |n| conn.send_query_prepared('select', [n]) }
  conn.send_query_params('SELECT 1/$1::int', [0])
  conn.send_query_prepared('select', [0])
  conn.pipeline_sync
  30.times do |n|
    equal(conn.get_result.getvalue(0, 0), "#{TAG}-#{n}", 'in a pipeline')
    equal(conn.get_result, nil)
  end
  fails(PG::DivisionByZero) { conn.get_result.check }
  conn.get_result
  equal(conn.get_result.result_status, PG::PGRES_PIPELINE_ABORTED)
  conn.get_result
  equal(conn.get_result.result_status, PG::PGRES_PIPELINE_SYNC)
  conn.exit_pipeline_mode
  # COPY and rows one by one.
  conn.copy_data("COPY #{TABLE} FROM STDIN") { 1000.times { |n| conn.put_copy_data("#{5000 + n}\t#{TAG}~#{n}\n") } }
  seen = 0
  conn.transaction do
    conn.copy_data("COPY (SELECT id FROM #{TABLE} WHERE id >= 5000 ORDER BY id) TO STDOUT") do
      while (line = conn.get_copy_data)
        equal(line, "#{5000 + seen}\n")
        seen += 1
      end
    end
  end
  equal(seen, 1000, 'rows of COPY')
  fails(IOError) { conn.copy_data("COPY #{TABLE} FROM STDIN") { raise IOError, 'given up by the program' } }
  conn.discard_results
  conn.send_query('SELECT generate_series(1, 500)')
  conn.set_single_row_mode
  equal(conn.get_result.stream_each_row.count, 500)
  conn.get_result
  # Cancel.
  3.times do
    conn.send_query('SELECT pg_sleep(20)')
    sleep 0.15
    began = Time.now
    equal(conn.cancel, nil)
    fails(PG::QueryCanceled) { conn.get_last_result }
    raise 'the cancel is late' if Time.now - began > 10
    equal(conn.exec_params('SELECT $1::text', [TAG]).getvalue(0, 0), TAG)
  end
  conn.exec("DROP TABLE #{TABLE}")
  conn.close
end

def raw_pinned
  listener, speaker = PG.connect(application_name: TAG), PG.connect(application_name: TAG)
  listener.exec("LISTEN ch_#{TAG}")
  5.times { |n| speaker.exec_params('SELECT pg_notify($1, $2)', ["ch_#{TAG}", n.to_s]) }
  heard = ''
  5.times { listener.wait_for_notify(10) { |_, _, payload| heard += payload } }
  equal(heard, '01234', 'notifications')
  listener.exec('UNLISTEN *')
  [listener, speaker].each(&:close)
end

class Author < ActiveRecord::Base
  self.table_name = "author_#{TAG}"
  has_many :books, dependent: :destroy
  validates :name, uniqueness: true
end

class Book < ActiveRecord::Base
  self.table_name = "book_#{TAG}"
  belongs_to :author
end

# Room for five statements: each further one makes Rails deallocate another.
def establish
  ActiveRecord::Base.establish_connection(
    adapter: 'postgresql', host: ENV.fetch('PGHOST'), port: ENV.fetch('PGPORT'), username: ENV.fetch('PGUSER'),
    password: ENV.fetch('PGPASSWORD'), database: ENV.fetch('PGDATABASE'), statement_limit: 5, pool: 3,
    variables: { statement_timeout: '20s' }, min_messages: 'warning'
  )
  ActiveRecord::Migration.verbose = false
end

def schema
  ActiveRecord::Schema.define do
    create_table("author_#{TAG}", force: :cascade) { |t| t.string :name, index: { unique: true } }
    create_table("book_#{TAG}", force: :cascade) do |t|
      t.belongs_to :author, foreign_key: { to_table: "author_#{TAG}" }
      t.text :title
      t.timestamps
    end
  end
  [Author, Book].each(&:reset_column_information)
end

def rails_shared
  establish
  schema
  8.times do |turn|
    author = Author.create!(name: "#{TAG}-#{turn}")
    5.times { |n| author.books.create!(title: "#{turn}/#{n}") }
    equal(author.books.count, 5)
    equal(Author.includes(:books).where(name: "#{TAG}-#{turn}").first.books.size, 5)
    equal(Author.find(author.id).name, "#{TAG}-#{turn}")
    equal(Book.where(author_id: author.id, title: "#{turn}/3").pluck(:title), ["#{turn}/3"])
    equal(Author.new(name: "#{TAG}-#{turn}").valid?, false)
    Author.transaction do
      author.update!(name: 'changed')
      begin
        Author.transaction(requires_new: true) { Author.new(name: 'changed').save!(validate: false) }
        raise 'a duplicate is accepted'
      rescue ActiveRecord::RecordNotUnique
        equal(Author.where(name: 'changed').count, 1)
      end
      author.lock!
      raise ActiveRecord::Rollback
    end
    equal(author.reload.name, "#{TAG}-#{turn}")
  end
  Book.insert_all((0...100).map { |n| { title: "bulk #{n}", created_at: Time.now, updated_at: Time.now } })
  equal(Book.where('title LIKE ?', 'bulk%').in_batches(of: 30).sum(&:delete_all), 100)
  fails(ActiveRecord::QueryCanceled) do
    Author.transaction do
      Author.connection.execute('SET LOCAL statement_timeout = 50')
      Author.connection.execute('SELECT pg_sleep(20)')
    end
  end
  equal(Author.connection.select_value('SHOW statement_timeout'), '20s')
  threads = 3.times.map do |number|
    Thread.new do
      ActiveRecord::Base.connection_pool.with_connection do |conn|
        10.times { |n| equal(conn.select_value("SELECT #{number * 100 + n}"), number * 100 + n) }
      end
    end
  end
  threads.each(&:join)
  ActiveRecord::Base.connection_pool.disconnect!
  establish
  ActiveRecord::Schema.define { drop_table("book_#{TAG}"); drop_table("author_#{TAG}") }
  ActiveRecord::Base.connection_pool.disconnect!
end

# Migrations hold an advisory lock of the session.
def rails_pinned
  establish
  ActiveRecord::Base.connection.create_schema("s_#{TAG}")
  ActiveRecord::Base.schema_migrations_table_name = "s_#{TAG}.schema_migrations"
  ActiveRecord::Base.internal_metadata_table_name = "s_#{TAG}.internal_metadata"
  step = Class.new(ActiveRecord::Migration[6.1]) do
    def self.name = 'Step'
    def change = create_table("s_#{TAG}.steps") { |t| t.string :word }
  end
  migration = step.new('Step', 1)
  migrations = [Struct.new(:migration) do
    def version = 1
    def name = 'Step'
    def disable_ddl_transaction = false
    def migrate(direction) = migration.migrate(direction)
    def scope = nil
    def filename = 'step.rb'
  end.new(migration)]
  [:up, :down].each do |direction|
    ActiveRecord::Migrator.new(direction, migrations, ActiveRecord::Base.connection.schema_migration).migrate
  end
  ActiveRecord::Base.connection.drop_schema("s_#{TAG}")
  ActiveRecord::Base.connection_pool.disconnect!
end

begin
  if PARTS != 'pinned'
    raw_shared
    rails_shared
  end
  if PARTS != 'shared'
    raw_pinned
    rails_pinned
  end
rescue StandardError => error
  warn "FAILED #{TAG}: #{error.full_message(highlight: false)}"
  exit 1
end
puts "ok #{TAG}"
